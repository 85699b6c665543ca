//! A whole benchmark: opens the device, measures what is asked for, writes table and lines.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use tallow_runtime::RuntimeOptions;
use tallow_runtime::vulkan::Context;

use crate::case::Bound;
use crate::error::{BenchError, Result};
use crate::plan::Plan;
use crate::report::{Row, Table, line};
use crate::{CEILINGS, Options, ceilings, llm_steps, run as run_case};

/// Where rows go.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    table: Table,
    json: Option<(String, File)>,
    device: String,
    driver: String,
    failed: usize,
}

impl Report<'_> {
    /// Opens the file of JSON lines, if there is one, and writes the head of the table.
    pub fn new<'a>(
        context: &Context,
        options: &Options,
        table: Table,
        out: &'a mut dyn Write,
    ) -> Result<Report<'a>> {
        let json = match &options.json {
            None => None,
            Some(path) => {
                let path_text = path.display().to_string();
                let fail =
                    |e: std::io::Error| BenchError::File { path: path_text.clone(), why: e.to_string() };
                let file = OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
                Some((path_text, file))
            }
        };
        let (device, driver) = (context.caps().name.clone(), context.caps().driver.clone());
        writeln!(out, "{device}, {driver}")?;
        table.head(out)?;
        Ok(Report { out, table, json, device, driver, failed: 0 })
    }

    /// Rows that failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Writes a row, with the names of the program and the device.
    pub fn add(&mut self, mut row: Row) -> Result<Row> {
        row.program = format!("tallow {}", env!("CARGO_PKG_VERSION"));
        (row.device, row.driver) = (self.device.clone(), self.driver.clone());
        self.failed += usize::from(row.failed.is_some());
        self.table.row(self.out, &row)?;
        if let Some((path, file)) = &mut self.json {
            let fail = |e: std::io::Error| BenchError::File { path: path.clone(), why: e.to_string() };
            writeln!(file, "{}", line(&row)?).map_err(fail)?;
        }
        Ok(row)
    }

    /// Writes what each kind of dispatch of a run takes.
    pub fn list(&mut self, dispatches: &[(String, usize, f64)]) -> Result<()> {
        for (name, count, micros) in dispatches {
            writeln!(self.out, "    {micros:>10.2} us  {count:>4} x  {name}")?;
        }
        Ok(self.out.flush()?)
    }
}

/// The device that the options and the environment name.
pub fn open(options: &Options) -> Result<Arc<Context>> {
    let missing = |e: tallow_runtime::Error| BenchError::NoDevice(e.to_string());
    let mut choice = RuntimeOptions::from_env().map_err(missing)?;
    choice.tune |= options.tune;
    if options.device.is_some() {
        choice.device = options.device.clone();
    }
    let context = Context::new(&choice).map_err(missing)?;
    if context.caps().timestamp_period_ps == 0 {
        return Err(BenchError::NoDevice(format!("{} writes no timestamps", context.caps().name)));
    }
    Ok(context)
}

/// See [`crate::run`].
pub fn run(options: &Options, plan: &Plan, out: &mut dyn Write) -> Result<usize> {
    let context = open(options)?;
    let wanted = wanted_ceilings(plan);
    let models = plan.models.iter().map(|model| model.name("prefill").len());
    let names = plan.cases.iter().map(|case| case.name.len()).chain(wanted.iter().map(|name| name.len()));
    let width = names.chain(models).max().unwrap_or(0);
    let mut report = Report::new(&context, options, Table::new(width, plan.peer.clone()), out)?;

    let mut ceilings = plan.ceilings.clone().unwrap_or_default();
    for name in CEILINGS.iter().filter(|name| wanted.contains(*name)) {
        if let Some(row) = ceilings::measure(&context, name, options) {
            ceilings.push(report.add(row)?);
        }
    }
    for case in &plan.cases {
        let (row, dispatches) = run_case::measure(&context, case, options, &ceilings);
        report.add(row)?;
        report.list(&dispatches)?;
    }
    for model in &plan.models {
        for (row, dispatches) in llm_steps::measure(&context, model, options, &ceilings) {
            report.add(row)?;
            report.list(&dispatches)?;
        }
    }
    Ok(report.failed)
}

/// The ceilings that are asked for, and those that cases are measured against.
fn wanted_ceilings(plan: &Plan) -> BTreeSet<&str> {
    let requested = plan.selected.iter().map(String::as_str).filter(|name| CEILINGS.contains(name));
    let mut wanted: BTreeSet<&str> = requested.collect();
    if plan.ceilings.is_none() {
        wanted.extend(plan.cases.iter().flat_map(|case| case.bound.ceilings()));
        if !plan.models.is_empty() {
            wanted.extend(Bound::Read.ceilings());
            wanted.extend(Bound::Matrix.ceilings());
        }
    }
    wanted
}
