//! Benchmark results as JSON lines, in the form that `tallow bench --json FILE` writes.

use std::path::Path;

use serde_json::{Map, Value};

/// The measured figures of one benchmark on one device.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: String,
    pub device: String,
    pub driver: String,
    /// When it was measured, as YYYY-MM-DD.
    pub date: String,
    /// The command that measured it.
    pub command: String,
    /// Device time of one instance or step, in microseconds.
    pub median_us: Option<f64>,
    pub gbps: Option<f64>,
    pub tflops: Option<f64>,
    pub tokens_per_s: Option<f64>,
    /// Share of the ceiling that was reached, and the ceiling's name.
    pub share: Option<f64>,
    pub ceiling: Option<String>,
    /// The ceiling in GB/s, if it was not measured by the same command.
    pub ceiling_rate: Option<f64>,
}

/// What a benchmark should reach: at most so many `us`, or at least so many of another unit.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub unit: String,
    pub target: f64,
}

/// A figure of another program, in the unit of the benchmark's target.
#[derive(Clone, Debug)]
pub struct Peer {
    pub program: String,
    pub name: String,
    pub value: String,
}

/// A line of a file: its number, and its JSON object.
type Numbered = (usize, Map<String, Value>);

/// All files of `benches/results/`.
#[derive(Debug, Default)]
pub struct Results {
    pub rows: Vec<Row>,
    pub targets: Vec<Target>,
    pub peers: Vec<Peer>,
}

/// Reads `targets.jsonl`, `peers.jsonl`, and every other `.jsonl` file of the folder as results.
pub fn read(folder: &Path) -> Result<Results, String> {
    let at = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries: Result<Vec<_>, _> = std::fs::read_dir(folder).map_err(at)?.collect();
    let mut paths: Vec<_> = entries.map_err(at)?.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    let mut results = Results::default();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl")) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
        match file.as_str() {
            "targets.jsonl" => results.targets = targets(&file, &text)?,
            "peers.jsonl" => results.peers = peers(&file, &text)?,
            _ => results.rows.extend(rows(&file, &text)?),
        }
    }
    results.rows = latest(results.rows);
    Ok(results)
}

/// The results of one file. A line without a name gives fields that the lines after it lack.
pub fn rows(file: &str, text: &str) -> Result<Vec<Row>, String> {
    let mut defaults = Map::new();
    let mut rows = vec![];
    for (number, line) in objects(file, text)? {
        if !line.contains_key("name") {
            defaults = line;
            continue;
        }
        let field = |key: &str| {
            let value = line.get(key).or_else(|| defaults.get(key)).and_then(Value::as_str);
            let why = || {
                format!("{file}:{number}: no {key}; put {{\"date\": .., \"command\": ..}} on a line before")
            };
            value.map(str::to_owned).ok_or_else(why)
        };
        let number = |key: &str| line.get(key).and_then(Value::as_f64);
        rows.push(Row {
            name: field("name")?,
            device: field("device")?,
            driver: field("driver")?,
            date: field("date")?,
            command: field("command")?,
            median_us: number("median_us"),
            gbps: number("gbps"),
            tflops: number("tflops"),
            tokens_per_s: number("tokens_per_s"),
            share: number("share"),
            ceiling: line.get("ceiling").and_then(Value::as_str).map(str::to_owned),
            ceiling_rate: number("ceiling_rate"),
        });
    }
    Ok(rows)
}

/// Without the rows that a later row of the same benchmark and device replaces.
pub fn latest(rows: Vec<Row>) -> Vec<Row> {
    let mut newest: Vec<Row> = vec![];
    for row in rows {
        newest.retain(|other| (&other.name, &other.device) != (&row.name, &row.device));
        newest.push(row);
    }
    newest
}

fn targets(file: &str, text: &str) -> Result<Vec<Target>, String> {
    let target = |(number, line): Numbered| {
        let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
        match (text("name"), text("unit"), line.get("target").and_then(Value::as_f64)) {
            (Some(name), Some(unit), Some(target)) => Ok(Target { name, unit, target }),
            _ => Err(format!("{file}:{number}: expected name, unit and target")),
        }
    };
    objects(file, text)?.into_iter().map(target).collect()
}

fn peers(file: &str, text: &str) -> Result<Vec<Peer>, String> {
    let peer = |(number, line): Numbered| {
        let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
        match (text("program"), text("name"), text("value")) {
            (Some(program), Some(name), Some(value)) => Ok(Peer { program, name, value }),
            _ => Err(format!("{file}:{number}: expected program, name and value")),
        }
    };
    objects(file, text)?.into_iter().map(peer).collect()
}

/// The lines of a file as JSON objects, with their numbers.
fn objects(file: &str, text: &str) -> Result<Vec<Numbered>, String> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| match serde_json::from_str(line) {
            Ok(object) => Ok((number, object)),
            Err(e) => Err(format!("{file}:{number}: {e}")),
        })
        .collect()
}
