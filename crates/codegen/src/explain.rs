//! Human-readable report of a module: kernels, plan, and rejected fusions.

use std::fmt::Write;

use tallow_ir::Op;

use crate::builder::Grid;
use crate::module::Module;
use crate::remat::Remat;

impl Module {
    /// The report: kernels with their fused ops, bytes and grids; levels, barriers and the arena; fusion decisions.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{} dispatches of {} distinct kernels", self.launches.len(), self.kernels.len())?;
        let width = self.program.dispatches.iter().map(|d| d.name.chars().count()).max().unwrap_or(0);
        for (i, launch) in self.launches.iter().enumerate() {
            let node = self.graph.graph().node(launch.node);
            let Op::Fusion(fusion) = &node.op else { continue };
            let ops: Vec<&str> =
                fusion.body.nodes().filter(|(_, n)| !n.op.is_leaf()).map(|(_, n)| n.op.name()).collect();
            let grid = match launch.grid {
                Grid::Direct([x, y, z]) => format!("{x}x{y}x{z}"),
                Grid::Table(at) => {
                    let entries = &self.table.entries()[at..at + 3];
                    entries.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("x")
                }
            };
            let d = &self.program.dispatches[i];
            let predicted = self.predicted_us.get(i).map(|us| format!("predicted {us:>8.1} us  "));
            let predicted = predicted.unwrap_or_default();
            let bytes = |a: &[tallow_ir::schedule::Access]| a.iter().map(|a| a.end - a.start).sum::<u64>();
            writeln!(
                out,
                "  {:<width$} grid {grid:<14} reads {:>10} B  writes {:>9} B  {predicted}fuses {} ops: {}",
                d.name,
                bytes(&d.reads),
                bytes(&d.writes),
                ops.len(),
                ops.join(" ")
            )?;
        }
        writeln!(out, "\n{}", self.plan.text(&self.program))?;
        if let Some(remat) = self.remat {
            writeln!(out, "{}", self.remat_line(&remat))?;
        }
        for donation in &self.donations {
            let name = |buffer: usize| &self.program.buffers[buffer].name;
            writeln!(
                out,
                "{} overwrites {} if nobody else holds it",
                name(donation.output),
                name(donation.input)
            )?;
        }
        for copy in &self.weight_copies {
            writeln!(out, "\"{}\" : {} is copied from \"{}\" once", copy.name, copy.ty, copy.source)?;
        }
        if !self.decisions.is_empty() {
            writeln!(out, "where fusion stopped")?;
            for line in &self.decisions {
                writeln!(out, "  {line}")?;
            }
        }
        Ok(())
    }

    /// What the budget cost.
    fn remat_line(&self, remat: &Remat) -> String {
        let Remat { budget, bytes, runs, .. } = remat;
        let reached = self.plan.arena.bytes;
        let all: f64 = self.predicted_us.iter().sum();
        let added = remat.us * 100.0 / (all - remat.us).max(f64::MIN_POSITIVE);
        let time = match self.predicted_us.is_empty() {
            true => String::new(),
            false => format!(", predicted {:+.1} us ({added:+.1} %)", remat.us),
        };
        format!(
            "intermediate values take {reached} B instead of {bytes} B, for a budget of {budget} B: {runs} kernels run \
             again{time}"
        )
    }
}
