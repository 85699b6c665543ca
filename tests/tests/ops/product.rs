//! The whole product of rows, element types and classes: interpreter against Candle, and what code generation says.

use std::collections::BTreeMap;

use tallow_codegen::CodegenError;
use tallow_ir::{DType, DeviceCaps, Graph, caps};

use crate::candle_side::{self, Compared};
use crate::case::Case;
use crate::class::Class;
use crate::row::Row;

/// Where kernels compute something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernels {
    /// On plain Vulkan 1.2.
    Everywhere,
    /// Where shaders have 64-bit integers and floats.
    Wide,
    /// Nowhere, and what the error says.
    Nowhere(String),
}

/// What holds for a row in an element type, over all classes.
#[derive(Default)]
pub struct Cell {
    /// Where the interpreter gives a result, and what kernels do there.
    pub computed: BTreeMap<Class, Kernels>,
    /// Where Candle gave the same.
    pub compared: Vec<Class>,
    /// Classes that are refused, and how.
    pub refused: Vec<(Class, String)>,
    /// Classes that Candle alone refuses, and how.
    pub candle: Vec<(Class, String)>,
}

/// Every cell of a row, in the order of [`DType::SCALARS`]; wrong results go into `wrong`.
pub fn cells(row: &Row, wrong: &mut Vec<String>) -> Vec<Cell> {
    candle_side::quiet();
    DType::SCALARS.into_iter().map(|dtype| cell(row, dtype, wrong)).collect()
}

fn cell(row: &Row, dtype: DType, wrong: &mut Vec<String>) -> Cell {
    let mut cell = Cell::default();
    for class in Class::ALL {
        let case = Case::new(row, dtype, class);
        let graph = match case.graph() {
            Ok(graph) => graph,
            Err(error) => {
                // The op, and a shape or an element type.
                if !error.contains(&row.word) || !(error.contains('[') || error.contains(dtype.name())) {
                    wrong.push(format!("{case}: the error does not say enough: {error}"));
                }
                cell.refused.push((class, error));
                continue;
            }
        };
        let ours = match case.interpret(&graph) {
            Ok(ours) => ours,
            Err(error) => {
                wrong.push(format!("{case}: built, but the interpreter fails: {error}"));
                continue;
            }
        };
        match kernels(&graph) {
            Ok(kernels) => {
                cell.computed.insert(class, kernels);
            }
            Err(error) => wrong.push(format!("{case}: {error}")),
        }
        match candle_side::compare(&case, &ours) {
            Ok(Compared::Same) => cell.compared.push(class),
            Ok(Compared::Lacks) => {}
            Ok(Compared::Refused(why)) => cell.candle.push((class, why)),
            Err(why) => wrong.push(format!("{case}: {why}")),
        }
    }
    cell
}

/// Where kernels compute the graph. Only an element type may be refused, by name.
fn kernels(graph: &Graph) -> Result<Kernels, String> {
    // Plain Vulkan 1.2, but with as many buffers as any device has at hand for a concatenation.
    let plain = DeviceCaps { max_storage_buffers: 8, ..caps::minimum() };
    let wide = DeviceCaps { int64: true, float64: true, ..plain.clone() };
    match (tallow_codegen::compile(graph, &plain), tallow_codegen::compile(graph, &wide)) {
        (Ok(_), Ok(_)) => Ok(Kernels::Everywhere),
        (Err(CodegenError::Dtype { .. }), Ok(_)) => Ok(Kernels::Wide),
        (Err(CodegenError::Dtype { .. }), Err(e @ CodegenError::Dtype { .. })) => {
            Ok(Kernels::Nowhere(e.to_string()))
        }
        (Err(e), _) | (_, Err(e)) => Err(format!("kernels refuse it: {e}")),
    }
}
