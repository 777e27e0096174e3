//! Samples in milliseconds, their percentiles, and tables of them.

use std::time::Duration;

#[derive(Clone, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    pub fn add(&mut self, sample: Duration) {
        self.add_ms(sample.as_secs_f64() * 1000.0);
    }

    pub fn add_ms(&mut self, sample: f64) {
        let at = self.0.partition_point(|&other| other < sample);
        self.0.insert(at, sample);
    }

    /// Returns the smallest sample that at least so many percent do not exceed; NaN if there is none.
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Rows of text under a heading, in aligned columns: the first to the left, the others to the right.
pub struct Table(Vec<Vec<String>>);

impl Table {
    pub fn new(heading: &[&str]) -> Table {
        Table(vec![heading.iter().map(ToString::to_string).collect()])
    }

    pub fn row(&mut self, name: &str, cells: &[String]) {
        self.0.push([&[name.to_owned()], cells].concat());
    }

    pub fn text(&self) -> String {
        let columns = self.0[0].len();
        let width = |column: usize| self.0.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.0 {
            text += &format!("  {:<1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                text += &format!("  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }
}
