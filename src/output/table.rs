//! Text in columns, as wide as their widest cell or as a terminal allows. Owns which columns shrink first and how a cut
//! is shown. Must not know locks.

use crate::text::shortened;
use anstyle::Style;
use unicode_width::UnicodeWidthStr;

/// One cell of a table.
#[derive(Clone, Default)]
pub struct Cell {
    /// Characters of one column each, before the text.
    pub marks: Vec<(char, Style)>,
    pub text: String,
    pub style: Style,
}

impl Cell {
    pub fn styled(text: impl Into<String>, style: Style) -> Cell {
        Cell { marks: Vec::new(), text: text.into(), style }
    }

    fn width(&self) -> usize {
        self.marks.len() + self.text.width()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::styled(text, Style::new())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        text.to_owned().into()
    }
}

/// A column that shrinks where space is short, and its minimum width; at 0 it is left out.
pub type Yield = (usize, usize);

const GAP: usize = 2;

/// The widths of `N` columns.
pub struct Layout<const N: usize> {
    widths: [usize; N],
    columns: usize,
}

impl<const N: usize> Layout<N> {
    /// Lays out these lines, within `columns` if it is set. `yields` lists which columns shrink, in order.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a [Cell; N]>, yields: &[Yield], columns: Option<usize>) -> Self {
        let mut widths = [0; N];
        for cells in lines {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.width().max(*width);
            }
        }
        let mut layout = Layout { widths, columns: columns.unwrap_or(usize::MAX) };
        for (column, least) in yields {
            let excess = layout.width().saturating_sub(layout.columns);
            let width = &mut layout.widths[*column];
            match least {
                _ if excess == 0 => break,
                // Its space goes to the columns that shrank before it.
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

    /// Returns one line without a newline.
    pub fn line(&self, cells: &[Cell; N]) -> String {
        let mut line = String::new();
        let (mut used, mut room) = (0, 0);
        for (cell, width) in cells.iter().zip(self.widths).filter(|(_, width)| *width > 0) {
            let space = width.min(self.columns.saturating_sub(room));
            // The last of the marks are the latest.
            let marks = &cell.marks[cell.marks.len().saturating_sub(space)..];
            let text = shortened(&cell.text, space - marks.len());
            if !text.is_empty() || !marks.is_empty() {
                let (gap, style) = (room - used, cell.style);
                line += &format!("{:gap$}", "");
                marks.iter().for_each(|(mark, style)| line += &format!("{style}{mark}{style:#}"));
                line += &format!("{style}{text}{style:#}");
                used = room + marks.len() + text.width();
            }
            room += width + GAP;
        }
        line
    }
}

/// Aligns these lines, each column as wide as its widest cell.
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
