//! The table of `tallow compile-check`: one row for each distinct kernel.

use std::io::Write;

use tallow::statistics::KernelReport;

use crate::error::Result;
use crate::terminal::escaped;

/// The columns. All but the first two are numbers.
const HEAD: [&str; 12] = [
    "kernel",
    "graphs",
    "runs",
    "workgroup",
    "lanes",
    "VGPRs",
    "SGPRs",
    "spilled",
    "scratch",
    "shared",
    "code",
    "waves",
];
/// Columns whose text is aligned to the left.
const LEFT: usize = 2;

/// What rows are sorted by. Those of one name keep the order in which the graphs need them, which no driver changes.
pub fn order(report: &KernelReport) -> (Vec<String>, String, bool) {
    (report.graphs.clone(), report.name.clone(), report.candidate)
}

/// Prints the rows. Sizes are in bytes: of private memory (`scratch`), of a workgroup's shared memory, of machine code.
pub fn print(reports: &[KernelReport], out: &mut impl Write) -> Result<()> {
    let rows: Vec<Vec<String>> = reports.iter().map(cells).collect();
    let mut widths: Vec<usize> = HEAD.iter().map(|head| head.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    line(out, &HEAD.map(String::from), &widths)?;
    for (row, report) in rows.iter().zip(reports) {
        line(out, row, &widths)?;
        if let Err(why) = &report.outcome {
            writeln!(out, "    does not compile: {}", escaped(why))?;
        }
    }
    Ok(())
}

fn line(out: &mut impl Write, cells: &[String], widths: &[usize]) -> Result<()> {
    let mut text = String::new();
    for (index, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        text += "  ";
        text += &match index < LEFT {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        };
    }
    writeln!(out, "{}", text.trim_end())?;
    Ok(())
}

fn cells(report: &KernelReport) -> Vec<String> {
    let [x, y, z] = report.workgroup;
    let name = match report.candidate {
        true => format!("{} (candidate)", report.name),
        false => report.name.clone(),
    };
    // Names come from a file.
    let mut cells = vec![
        escaped(&name),
        escaped(&report.graphs.join(",")),
        report.dispatches.to_string(),
        format!("{x}x{y}x{z}"),
    ];
    if let Ok(statistics) = &report.outcome {
        let found = &statistics.resources;
        let spilled = found.spilled_vgprs.or(found.spilled_sgprs).map(|_| found.spilled());
        let figures = [
            found.subgroup_size,
            found.vgprs,
            found.sgprs,
            spilled,
            found.scratch_bytes,
            found.shared_memory_bytes,
            found.code_bytes,
            found.waves,
        ];
        cells.extend(figures.map(|figure| figure.map_or_else(|| "-".to_string(), |n| n.to_string())));
    }
    cells
}
