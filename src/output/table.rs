//! Text in columns: as wide as the widest of their cells, or as fits a terminal; what gives way first, and how a cut
//! is shown. Knows nothing of locks.

use crate::text::shortened;
use anstyle::Style;
use unicode_width::UnicodeWidthStr;

/// What stands in one place of a table.
#[derive(Clone, Default)]
pub struct Cell {
    pub text: String,
    pub style: Style,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, style: Style::new() }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        text.to_owned().into()
    }
}

/// A column that gives way where there is too little room, and how narrow it may become; at 0 it is left out.
pub type Yield = (usize, usize);

const GAP: usize = 2;

/// How wide each of `N` columns is.
pub struct Layout<const N: usize> {
    widths: [usize; N],
    columns: usize,
}

impl<const N: usize> Layout<N> {
    /// For these lines, on so many columns, if there is an end to them. `yields` says what gives way, in that order.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a [Cell; N]>, yields: &[Yield], columns: Option<usize>) -> Self {
        let mut widths = [0; N];
        for cells in lines {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.text.width().max(*width);
            }
        }
        let mut layout = Layout { widths, columns: columns.unwrap_or(usize::MAX) };
        for (column, least) in yields {
            let excess = layout.width().saturating_sub(layout.columns);
            let width = &mut layout.widths[*column];
            match least {
                _ if excess == 0 => break,
                // What it leaves is for those that gave way before it.
                0 => {
                    widths[*column] = 0;
                    layout.widths = widths;
                }
                least => *width = width.saturating_sub(excess).max(*least).min(*width),
            }
        }
        layout
    }

    fn width(&self) -> usize {
        let there = self.widths.iter().filter(|width| **width > 0);
        there.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// One line, without its end.
    pub fn line(&self, cells: &[Cell; N]) -> String {
        let mut line = String::new();
        let (mut used, mut room) = (0, 0);
        for (cell, width) in cells.iter().zip(self.widths).filter(|(_, width)| *width > 0) {
            let text = shortened(&cell.text, width.min(self.columns.saturating_sub(room)));
            if !text.is_empty() {
                let (gap, style) = (room - used, cell.style);
                line += &format!("{:gap$}{style}{text}{style:#}", "");
                used = room + text.width();
            }
            room += width + GAP;
        }
        line
    }
}

/// All of these lines, each column as wide as its widest cell.
pub fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let cells: Vec<[Cell; N]> = lines.iter().map(|line| line.clone().map(Cell::from)).collect();
    let layout = Layout::of(&cells, &[], None);
    cells.iter().map(|cells| layout.line(cells) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out(yields: &[Yield], columns: usize) -> Vec<String> {
        let line = |cells: [&str; 3]| cells.map(Cell::from);
        let lines = [line(["name", "state", "why"]), line(["日本語 deploy", "held", "a long reason"])];
        let layout = Layout::of(&lines, yields, Some(columns));
        lines.iter().map(|cells| layout.line(cells)).collect()
    }

    #[test]
    fn what_gives_way_first_is_cut_first_and_no_more_than_is_needed() {
        let yields = [(2, 6), (0, 8), (2, 0)];
        assert_eq!(laid_out(&yields, 35), ["name           state  why", "日本語 deploy  held   a long reason"]);
        assert_eq!(laid_out(&yields, 30)[1], "日本語 deploy  held   a long …");
        assert_eq!(laid_out(&yields, 25)[1], "日本語 de…  held   a lon…");
        assert_eq!(laid_out(&yields, 20)[1], "日本語 deploy  held", "what was left out makes room");
        assert_eq!(laid_out(&yields, 15)[1], "日本語 deploy");
    }

    #[test]
    fn no_line_is_wider_than_there_is_room() {
        for columns in 0..40 {
            for yields in [&[(2, 6), (0, 8), (2, 0)][..], &[]] {
                for line in laid_out(yields, columns) {
                    assert!(line.width() <= columns, "{columns}: {line}");
                }
            }
        }
    }
}
