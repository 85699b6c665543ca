//! What a sweep found: the points below a threshold, worst first, and figures of families.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::prediction::{TOLERANCE, is_close};
use super::row::Row;

/// The share below which no point of any family should be.
const WORST: f64 = 0.15;

/// Text of the points below `threshold`, worst first, and of all families. `peer` has the times of a peer.
pub fn summary(rows: &[Row], threshold: f64, peer: &[Row]) -> String {
    let mut out = String::new();
    let peers: HashMap<&str, f64> =
        peer.iter().filter(|row| row.median_us > 0.0).map(|row| (row.name.as_str(), row.median_us)).collect();
    let _ = write_points(&mut out, rows, threshold, &peers);
    let _ = write_families(&mut out, rows, threshold);
    out
}

fn write_points(
    out: &mut String,
    rows: &[Row],
    threshold: f64,
    peers: &HashMap<&str, f64>,
) -> std::fmt::Result {
    let mut below: Vec<&Row> =
        rows.iter().filter(|row| row.failed.is_none() && row.share < threshold).collect();
    below.sort_by(|a, b| a.share.total_cmp(&b.share));
    writeln!(
        out,
        "\n{} of {} points below {:.0} % of their roofline",
        below.len(),
        rows.len(),
        100.0 * threshold
    )?;
    for row in below {
        let peer = peers.get(row.name.as_str()).map(|us| format!(", {:.2} x peer", row.median_us / us));
        writeln!(
            out,
            "{:5.1} %  {}  {:.2} us, {} {:.2} us, predicted {:.2} us ({:.2} x){}",
            100.0 * row.share,
            row.name,
            row.median_us,
            row.bound,
            row.roofline_us,
            row.predicted_us,
            row.predicted_ratio(),
            peer.unwrap_or_default()
        )?;
        row.kernels.iter().try_for_each(|kernel| writeln!(out, "         {kernel}"))?;
        row.decisions.iter().try_for_each(|line| writeln!(out, "         not fused: {line}"))?;
    }
    let failed = rows.iter().filter_map(|row| row.failed.as_ref().map(|why| (&row.name, why)));
    for (name, why) in failed {
        writeln!(out, "FAILED   {name}: {why}")?;
    }
    Ok(())
}

fn write_families(out: &mut String, rows: &[Row], threshold: f64) -> std::fmt::Result {
    let mut families: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        families.entry(row.name.split('/').next().unwrap_or_default()).or_default().push(row);
    }
    writeln!(
        out,
        "\n{:18} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "family", "points", "median", "worst", "reach", "< 15 %", "predicted"
    )?;
    for (family, rows) in families {
        let share = |row: &&Row| if row.failed.is_some() { 0.0 } else { row.share };
        let mut shares: Vec<f64> = rows.iter().map(share).collect();
        shares.sort_by(f64::total_cmp);
        let count = |test: &dyn Fn(f64) -> bool| shares.iter().filter(|share| test(**share)).count();
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        writeln!(
            out,
            "{family:18} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9}",
            shares.len(),
            percent(shares[shares.len() / 2]),
            percent(shares[0]),
            percent(count(&|share| share >= threshold) as f64 / shares.len() as f64),
            count(&|share| share < WORST),
            predicted(&rows)
        )?;
    }
    let all: Vec<&Row> = rows.iter().collect();
    writeln!(
        out,
        "{} of predictions are within {:.0} % of the measurement",
        predicted(&all),
        100.0 * TOLERANCE
    )
}

/// The share of measured points whose prediction is close; `-` if none was predicted.
fn predicted(rows: &[&Row]) -> String {
    let counted: Vec<bool> = rows
        .iter()
        .filter(|row| row.failed.is_none() && row.predicted_us > 0.0)
        .map(|row| is_close(row.predicted_us, row.median_us))
        .collect();
    match counted.len() {
        0 => "-".into(),
        all => format!("{:.1} %", 100.0 * counted.iter().filter(|close| **close).count() as f64 / all as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_listed_worst_first_and_families_counted() {
        let row = |name: &str, share| Row {
            name: name.into(),
            share,
            median_us: 2.0,
            predicted_us: 2.9 - share,
            ..Row::default()
        };
        let failed = Row { failed: Some("wrong".into()), ..row("map/c", 0.0) };
        let rows = [row("map/a", 0.4), row("map/b", 0.9), row("scan/a", 0.1), failed];
        let text = summary(&rows, 0.5, &[Row { median_us: 1.0, ..row("map/a", 0.0) }]);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(at("scan/a") < at("map/a") && !text.contains("map/b"));
        at("2.00 x peer");
        at("FAILED   map/c: wrong");
        at("map                     3   40.0 %    0.0 %   33.3 %        1   100.0 %");
        at("2.00 us,  0.00 us, predicted 2.50 us (1.25 x), 2.00 x peer");
        at("66.7 % of predictions are within 30 % of the measurement");
    }
}
