//! The page `docs/ops.md`, written from what the product of all tests gave.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use tallow_ir::DType;

use crate::class::Class;
use crate::product::{Cell, Kernels};
use crate::row::{Candle, Row};

const HEAD: &str = "# Ops and element types

Which op computes in which element type, in which layouts, and on which devices. Written by
`UPDATE_DOCS=1 cargo test -p tallow-tests --test ops page` from test results. Each cell covers ten classes of layouts.
The interpreter computes them and is compared with `candle_core` on the CPU, if Candle has the op. A Vulkan device is
compared with the interpreter.

| in a cell | means |
|---|---|
| all | the interpreter, and kernels on any Vulkan 1.2 device |
| 64 | the interpreter, and kernels on devices with 64-bit integers (i64) or floats (f64); elsewhere an error that names the type |
| cpu | the interpreter; kernels return an error that names the type |
| - | an error when the graph is built, which names op and types |
| ` c` after it | the interpreter's results equal Candle's, too |

Classes: *contiguous*; *strided* (permuted axes); *broadcast* (every second axis repeated); *sliced* (a part of
something larger along each axis); *scalar*; *empty* (an extent of 0); *size 1*; *odd sizes* (primes);
*> 65535 workgroups* (loops or grids beyond one axis of a dispatch); *windows* (tensors larger than one storage-buffer
binding). Classes that an op refuses in all of its types are listed after its name.
";

/// A result of the whole product.
pub type Table<'a> = Vec<(&'a Row, Vec<Cell>)>;

fn mark(cell: &Cell) -> String {
    let worst = cell.computed.values().max();
    let here = match worst {
        None => return "-".into(),
        Some(Kernels::Everywhere) => "all",
        Some(Kernels::Wide) => "64",
        Some(Kernels::Nowhere(_)) => "cpu",
    };
    let compared = if cell.compared.contains(&Class::Contiguous) { " c" } else { "" };
    format!("{here}{compared}")
}

/// Classes that a row refuses in every type that it takes.
fn refused(cells: &[Cell]) -> String {
    let taken: Vec<&Cell> = cells.iter().filter(|c| !c.computed.is_empty()).collect();
    let always = |class: &&Class| taken.iter().all(|c| !c.computed.contains_key(class));
    let names: Vec<&str> = Class::ALL.iter().filter(always).map(|c| c.name()).collect();
    if names.is_empty() { String::new() } else { format!(" (not {})", names.join(", ")) }
}

pub fn text(table: &Table<'_>) -> String {
    let mut page = String::from(HEAD);
    let mut part = "";
    for (row, cells) in table {
        if row.part != part {
            part = row.part;
            let names: Vec<&str> = DType::SCALARS.iter().map(|d| d.name()).collect();
            let _ = write!(
                page,
                "\n## {part}\n\n| op | {} |\n|---|{}\n",
                names.join(" | "),
                "---|".repeat(names.len())
            );
        }
        let marks: Vec<String> = cells.iter().map(mark).collect();
        let _ = writeln!(page, "| `{}`{} | {} |", row.name, refused(cells), marks.join(" | "));
    }
    page += "\n## What is refused, and how\n\nThe first error of each op: when the graph is built, and by kernels.\n\n| op | error |\n|---|---|\n";
    for (row, cells) in table {
        let built = cells.iter().flat_map(|c| &c.refused).find(|(class, _)| *class == Class::Contiguous);
        let built = built.or_else(|| cells.iter().flat_map(|c| &c.refused).next()).map(|(_, error)| error);
        let kernel = cells.iter().flat_map(|c| c.computed.values()).find_map(|k| match k {
            Kernels::Nowhere(error) => Some(error),
            Kernels::Everywhere | Kernels::Wide => None,
        });
        for error in built.into_iter().chain(kernel) {
            let _ = writeln!(page, "| `{}` | {} |", row.name, error.replace('|', "\\|"));
        }
    }
    page += "\n## Without a counterpart in Candle\n\n| op | because |\n|---|---|\n";
    for (row, _) in table {
        if let Candle::Lacks(why) = row.candle {
            let _ = writeln!(page, "| `{}` | {why} |", row.name);
        }
    }
    page += "\n## Where Candle alone refuses\n\nCompared in the classes where it does not.\n\n| op | element types: classes |\n|---|---|\n";
    for (row, cells) in table {
        let mut by_classes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (dtype, cell) in DType::SCALARS.iter().zip(cells) {
            let classes: Vec<&str> = cell.candle.iter().map(|(class, _)| class.name()).collect();
            let all = classes.contains(&Class::Contiguous.name());
            let what = if all { "all".to_string() } else { classes.join(", ") };
            if !what.is_empty() {
                by_classes.entry(what).or_default().push(dtype.name());
            }
        }
        let list: Vec<String> =
            by_classes.iter().map(|(what, types)| format!("{}: {what}", types.join(" "))).collect();
        if !list.is_empty() {
            let _ = writeln!(page, "| `{}` | {} |", row.name, list.join("; "));
        }
    }
    page
}

/// Compares with the file, or writes it.
pub fn check(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ops.md");
    if std::env::var("UPDATE_DOCS").is_ok_and(|v| v == "1") {
        std::fs::write(&path, page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/ops.md is out of date: UPDATE_DOCS=1 writes it");
}
