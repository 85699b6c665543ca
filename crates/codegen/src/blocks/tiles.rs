//! Tiles of several rows, or column groups, per workgroup.

use tallow_ir::Dim;

/// The tiles of rows or column groups that workgroups process one after the other.
pub(crate) struct Tiles {
    /// Number of tiles, or of rows where a workgroup processes one at a time, as an expression.
    pub count: String,
    /// The line that computes the row `r` of an invocation, clamped to the last one.
    pub r: Vec<String>,
    /// The condition that the invocation's row exists; `None` if it always does.
    pub inside: Option<String>,
}

impl Tiles {
    /// Tiles of `columns` rows, of which there are `rows`, `count` as an expression; 0 for one row at a time. The template
    /// defines `tile` and the position `lane` in it.
    pub fn of(rows: &Dim, count: &str, columns: u32) -> Tiles {
        if columns == 0 {
            return Tiles { count: count.into(), r: vec![], inside: None };
        }
        let group = format!("tile * {columns}u + lane");
        let line = |r: &str| vec![format!("const uint r = {r};")];
        let per = i64::from(columns);
        let Some(n) = rows.as_const().filter(|n| *n > 0) else {
            return Tiles {
                count: format!("({count} + {}u) / {columns}u", columns - 1),
                r: line(&format!("min({group}, {count} - 1u)")),
                inside: Some(format!("{group} < {count}")),
            };
        };
        let (r, inside) = match n % per {
            0 => (line(&group), None),
            _ => (line(&format!("min({group}, {}u)", n - 1)), Some(format!("{group} < {n}u"))),
        };
        Tiles { count: format!("{}u", (n + per - 1) / per), r, inside }
    }
}
