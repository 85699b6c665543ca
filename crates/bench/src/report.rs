//! What was measured: as a row of a table, as a line of JSON, beside a peer's.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};
use crate::stats::Spread;

/// The figures of one case. A peer's line may leave out whatever it has not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// The case.
    pub name: String,
    /// The program that ran it.
    pub program: String,
    /// The device, as its driver calls it.
    pub device: String,
    /// The driver.
    pub driver: String,
    /// Microseconds of one instance (or token, or command) by the device's clock: median over runs.
    pub median_us: f64,
    /// The shortest run's.
    pub min_us: f64,
    /// One run in ten was shorter.
    pub p10_us: f64,
    /// One run in ten was longer.
    pub p90_us: f64,
    /// How many runs were timed.
    pub runs: usize,
    /// Instances in one run, each with operands of its own.
    pub instances: usize,
    /// Bytes that an instance moves at least.
    pub bytes: u64,
    /// Floating-point operations of an instance.
    pub flops: u64,
    /// Bytes over the median time, in 10^9 a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// Operations over the median time, in 10^12 a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// Tokens a second by the host's clock, results read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Microseconds of one instance or token by the host's clock: median over runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_us: Option<f64>,
    /// Microseconds of one token by the clock of the thread that runs it: what the host computes, without waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// The ceiling that the share is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
    /// The share of that ceiling that was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Dispatches of one run.
    pub dispatches: usize,
    /// Barriers between the dispatches of one run.
    pub barriers: usize,
    /// Bytes that one run's operands and results take, of which little can be in the last-level cache still.
    pub working_set: u64,
    /// Normalized mean squared error of the results that were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nmse: Option<f64>,
    /// Elements that were checked.
    pub checked: usize,
    /// Why the figures do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Row {
    /// Takes times in microseconds, and the rates that follow from them.
    pub fn timed(&mut self, spread: Spread) {
        (self.median_us, self.min_us, self.p10_us, self.p90_us) =
            (spread.median, spread.min, spread.p10, spread.p90);
        self.runs = spread.runs;
        // A millionth of a second for 10^9 and 10^12 of something.
        let rate = |count: u64, per: f64| {
            (count > 0 && spread.median > 0.0).then(|| count as f64 / spread.median / per)
        };
        self.gbps = rate(self.bytes, 1e3);
        self.tflops = rate(self.flops, 1e6);
    }

    /// The share of the first of the `names` that is among `ceilings`: of its operations if it has some, else of bytes.
    pub fn share_of(&mut self, names: &[&str], ceilings: &[Row]) {
        let found =
            names.iter().find_map(|name| ceilings.iter().find(|c| c.name == *name && c.failed.is_none()));
        let Some(ceiling) = found else { return };
        let share = match (ceiling.tflops, self.tflops, ceiling.gbps, self.gbps) {
            (Some(ceiling), Some(reached), _, _) | (None, _, Some(ceiling), Some(reached)) => {
                reached / ceiling
            }
            _ => return,
        };
        self.ceiling = Some(ceiling.name.clone());
        self.share = Some(share);
    }

    /// The figure that the case is known by, and its unit.
    fn rate(&self) -> (Option<f64>, &'static str) {
        let by_flops =
            self.ceiling.as_deref().is_some_and(|c| !matches!(c, "ceilings/read" | "ceilings/copy"));
        match (self.tokens_per_s, self.gbps, self.tflops) {
            (Some(rate), _, _) => (Some(rate), "tok/s"),
            (None, None, Some(rate)) => (Some(rate), "Tflop/s"),
            (None, Some(_), Some(rate)) if by_flops => (Some(rate), "Tflop/s"),
            (None, Some(rate), _) => (Some(rate), "GB/s"),
            (None, None, None) => (None, ""),
        }
    }
}

/// Reads JSON lines: ours, or those of a peer.
///
/// # Errors
/// When the file cannot be read or a line is none of ours.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let fail = |why: String| BenchError::File { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| fail(format!("line {}: {e}", number + 1)))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line).collect()
}

/// One row as a line of JSON.
///
/// # Errors
/// Where serde fails.
pub fn line(row: &Row) -> Result<String> {
    serde_json::to_string(row).map_err(|e| BenchError::File { path: "json".into(), why: e.to_string() })
}

/// A table that is written row by row as cases are done, beside a peer's figures if there are some.
pub struct Table {
    peer: HashMap<String, Row>,
    width: usize,
}

impl Table {
    /// A table for cases whose names have at most `width` characters.
    pub fn new(width: usize, peer: Option<Vec<Row>>) -> Table {
        let peer = peer.unwrap_or_default().into_iter().map(|row| (row.name.clone(), row)).collect();
        Table { peer, width: width.max(12) }
    }

    /// Writes the names of the columns.
    ///
    /// # Errors
    /// When writing fails.
    pub fn head(&self, out: &mut dyn Write) -> Result<()> {
        let width = self.width;
        write!(out, "{:width$} {:>10} {:>9} {:>9} {:>9}", "case", "median us", "min", "p10", "p90")?;
        write!(out, " {:>9} {:7} {:>6} {:>9} {:>5}", "rate", "", "share", "dispatch", "barr")?;
        if !self.peer.is_empty() {
            write!(out, " {:>10} {:>7}", "peer us", "ours/p")?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }

    /// Writes a row.
    ///
    /// # Errors
    /// When writing fails.
    pub fn row(&self, out: &mut dyn Write, row: &Row) -> Result<()> {
        let width = self.width;
        if let Some(why) = &row.failed {
            writeln!(out, "{:width$} FAILED: {why}", row.name)?;
            return Ok(out.flush()?);
        }
        let (rate, unit) = row.rate();
        let rate = rate.map_or_else(|| "-".into(), figure);
        let share = row.share.map_or_else(|| "-".into(), |s| format!("{:.1} %", 100.0 * s));
        let dispatches = match row.instances {
            0 | 1 => row.dispatches.to_string(),
            n => format!("{}/{n}", row.dispatches),
        };
        let (median, min, p10, p90) =
            (figure(row.median_us), figure(row.min_us), figure(row.p10_us), figure(row.p90_us));
        write!(out, "{:width$} {median:>10} {min:>9} {p10:>9} {p90:>9}", row.name)?;
        write!(out, " {rate:>9} {unit:7} {share:>6} {dispatches:>9} {:>5}", row.barriers)?;
        if let Some(peer) = self.peer.get(&row.name) {
            let ratio = if peer.median_us > 0.0 { row.median_us / peer.median_us } else { 0.0 };
            write!(out, " {:>10} {ratio:>7.2}", figure(peer.median_us))?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// Four digits that count.
fn figure(x: f64) -> String {
    match x.abs() {
        x if x >= 1000.0 => format!("{x:.0}"),
        x if x >= 100.0 => format!("{x:.1}"),
        x if x >= 10.0 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let mut row =
            Row { name: "matvec/x".into(), bytes: 33_000_000, flops: 2, instances: 8, ..Row::default() };
        row.timed(Spread { median: 10.0, min: 9.0, p10: 9.5, p90: 12.0, runs: 5 });
        row
    }

    #[test]
    fn rates_and_shares_follow_from_times() {
        let mut ours = row();
        assert_eq!(ours.gbps, Some(3300.0));
        let read = Row { name: "ceilings/read".into(), gbps: Some(4400.0), ..Row::default() };
        ours.share_of(&["ceilings/matrix", "ceilings/read"], std::slice::from_ref(&read));
        assert_eq!((ours.share, ours.ceiling.as_deref()), (Some(0.75), Some("ceilings/read")));
        ours.share_of(&["ceilings/copy"], &[read]);
        assert_eq!(ours.share, Some(0.75));
    }

    #[test]
    fn lines_are_read_again_and_a_peer_stands_beside() {
        let text = line(&row()).unwrap();
        let back: Row = serde_json::from_str(&text).unwrap();
        assert_eq!(back, row());
        let peer: Row = serde_json::from_str(r#"{"name": "matvec/x", "median_us": 20.0}"#).unwrap();
        let table = Table::new(12, Some(vec![peer]));
        let mut out = vec![];
        table.head(&mut out).unwrap();
        table.row(&mut out, &row()).unwrap();
        table.row(&mut out, &Row { failed: Some("wrong".into()), ..row() }).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("ours/p") && lines[1].ends_with("20.00    0.50"), "{text}");
        assert!(lines[2].contains("FAILED: wrong"), "{text}");
    }
}
