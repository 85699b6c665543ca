//! Renders benchmark results as Markdown.

use std::fmt::Write;

use crate::results::{Peer, Results, Row, Target};

/// Programs with a column of their own.
const PROGRAMS: [&str; 3] = ["llama.cpp", "PyTorch", "Burn"];
/// Groups of benchmarks in the order of the page.
const GROUPS: [&str; 12] = [
    "llm/decode",
    "llm/greedy",
    "llm/prefill",
    "matvec/",
    "matvec-chained/",
    "matmul/",
    "batched-matmul/",
    "conv2d/",
    "attention/",
    "map/",
    "row/",
    "sum/",
];

/// The page.
pub fn page(results: &Results) -> String {
    let mut out = String::new();
    let runs = runs(&results.rows);
    let met =
        results.targets.iter().filter(|t| find(&results.rows, t).is_some_and(|row| meets(row, t))).count();
    let _ = write!(
        out,
        "# Performance\n\n\
         Written by `UPDATE_DOCS=1 cargo test --workspace --test performance` from the JSON lines in `benches/results/`.\n\
         [Benchmarking](benchmarking.md) describes the method; [experiments](experiments/) hold variants, history and\n\
         explanations.\n\n\
         {met} of {} targets are met.\n\n\
         Runs:\n\n",
        results.targets.len()
    );
    for (label, run) in &runs {
        let Row { device, driver, date, command, .. } = run;
        let _ = writeln!(out, "- **{label}**: {device}, driver {driver}, recorded {date}:\n  `{command}`");
    }
    out.push_str(
        "\n- *Time* is device time per instance, step or prompt: the median over runs.\n\
         - *Rate* is bytes, operations or tokens over time. Decode and greedy rates use host time and include the read-back.\n\
         - *Share* is relative to a ceiling that the same run measured, unless the cell states its rate.\n\
         - *Target* is in the unit of the rate, or in us. Peer columns use the target's unit.\n\
         - Peers ran on the same GPU model on other days: llama.cpp (Vulkan, commit 0c1e57098), PyTorch 2.11, Burn 0.22.1\n  \
         (Vulkan). Figures differ by up to 2 % between GPUs of one model.\n\n\
         | benchmark | time, us | rate | share of ceiling | target | llama.cpp | PyTorch | Burn | run |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for row in sorted(&results.rows) {
        line(&mut out, row, results, &runs);
    }
    out
}

/// Distinct runs, labelled A, B and so on, newest first.
fn runs(rows: &[Row]) -> Vec<(char, &Row)> {
    let mut runs: Vec<&Row> = vec![];
    for row in rows {
        if !runs.iter().any(|run| same_run(run, row)) {
            runs.push(row);
        }
    }
    runs.sort_by(|a, b| (&b.date, &a.device, &a.command).cmp(&(&a.date, &b.device, &b.command)));
    ('A'..).zip(runs).collect()
}

fn same_run(a: &Row, b: &Row) -> bool {
    (&a.device, &a.driver, &a.date, &a.command) == (&b.device, &b.driver, &b.date, &b.command)
}

/// Rows by group, then by name; ceilings, which belong to no group, last.
fn sorted(rows: &[Row]) -> Vec<&Row> {
    let group =
        |row: &Row| GROUPS.iter().position(|group| row.name.starts_with(group)).unwrap_or(GROUPS.len());
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (group(row), &row.name, &row.device));
    rows
}

fn line(out: &mut String, row: &Row, results: &Results, runs: &[(char, &Row)]) {
    let target = results.targets.iter().find(|target| target.name == row.name);
    let peer = |program: &&str| {
        let is = |peer: &&Peer| peer.program == **program && peer.name == row.name;
        results.peers.iter().find(is).map_or("", |peer| peer.value.as_str()).to_owned()
    };
    let rate = [(row.tokens_per_s, "tokens/s"), (row.tflops, "TFLOP/s"), (row.gbps, "GB/s")];
    let rate = rate.into_iter().find_map(|(rate, unit)| Some(format!("{} {unit}", figure(rate?))));
    let share = row.share.map(|share| {
        let ceiling = row.ceiling.as_deref().unwrap_or_default();
        let ceiling = ceiling.strip_prefix("ceilings/").unwrap_or(ceiling);
        let rate = row.ceiling_rate.map_or_else(String::new, |rate| format!(" ({} GB/s)", figure(rate)));
        format!("{:.0} % of `{ceiling}`{rate}", 100.0 * share)
    });
    let aim = target.map(|target| {
        let verdict = if meets(row, target) { "met" } else { "missed" };
        let unit = if target.unit == "us" { " us" } else { "" };
        format!("{}{unit}, {verdict}", figure(target.target))
    });
    let label =
        runs.iter().find(|(_, run)| same_run(run, row)).map_or(String::new(), |(label, _)| label.to_string());
    let time = row.median_us.map(figure);
    let cells = [Some(format!("`{}`", row.name)), time, rate, share, aim].map(Option::unwrap_or_default);
    let peers = PROGRAMS.iter().map(peer);
    let cells: Vec<String> = cells.into_iter().chain(peers).chain([label]).collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn find<'a>(rows: &'a [Row], target: &Target) -> Option<&'a Row> {
    rows.iter().find(|row| row.name == target.name)
}

fn meets(row: &Row, target: &Target) -> bool {
    match target.unit.as_str() {
        "us" => row.median_us.is_some_and(|us| us <= target.target),
        "GB/s" => row.gbps.is_some_and(|rate| rate >= target.target),
        "TFLOP/s" => row.tflops.is_some_and(|rate| rate >= target.target),
        "tokens/s" => row.tokens_per_s.is_some_and(|rate| rate >= target.target),
        unit => panic!("targets.jsonl: {}: no such unit: {unit}", target.name),
    }
}

/// At most four significant digits, or all digits before the point.
fn figure(x: f64) -> String {
    let digits = (3 - x.abs().max(1e-3).log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{x:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
