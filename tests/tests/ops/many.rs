//! More than 65535 workgroups: all that Vulkan promises along one axis of a dispatch, so that kernels must loop or use
//! other axes.

use tallow::Device;
use tallow_ir::{DType, Graph, Op, Shape, Value};
use tallow_reference::Array;
use tallow_tests::Inputs;

use crate::case::{Case, leaf};
use crate::class::{Class, PERIOD};
use crate::kernels::{Outcome, caps, outputs, same};
use crate::row::Leaf;

/// As many as one axis of a dispatch may have.
const MOST: u64 = 65535;

/// Rows repeat this often at first; half as often again until it is enough.
const FIRST: usize = 1000;

/// Elements that no kernel here needs more of: 256 an invocation would be 16.8 million.
const LIMIT: usize = 160_000_000;

/// Repeats the case's rows until a kernel takes more than 65535 workgroups; the result must repeat the
/// interpreter's of one period.
pub fn check(device: &Device, case: &Case<'_>, one: &Graph, outcome: &mut Outcome) {
    if case.row.expression.is_some() {
        // Their lookups are kernels of the same kind as `gather`.
        return;
    }
    if let Err(why) = repeated(device, case, one) {
        outcome.wrong.push(format!("{case}: {why}"));
    }
    outcome.compared += 1;
}

fn repeated(device: &Device, case: &Case<'_>, one: &Graph) -> Result<(), String> {
    if !case.row.by_rows {
        return undivided(device, case);
    }
    let base = case.interpret(one)?;
    let mut copies = FIRST;
    let graph = loop {
        let graph = large(case, copies)?;
        if groups(device, &graph)? > MOST {
            break graph;
        }
        copies += copies / 2;
        if copies * base.len().max(1) > LIMIT {
            return Err(format!("{copies} copies take no {MOST} workgroups"));
        }
    };
    let mut inputs = Inputs::default();
    case.fill("c", &mut inputs, false);
    let first =
        inputs.inputs.get_mut("c.0").or(inputs.states.get_mut("c.0")).ok_or("no operand to repeat")?;
    first.bytes = first.bytes.repeat(copies);
    first.shape[0] *= copies;
    let period = base.to_bytes().len();
    let (dtype, shape, bytes) = output(device, &graph, &inputs)?;
    if shape[0] != base.shape[0] * copies || bytes.len() != period * copies {
        return Err(format!("{shape:?} of {} bytes", bytes.len()));
    }
    // Each period by itself, but equal bytes are compared once.
    let mut last: Option<&[u8]> = None;
    for (copy, part) in bytes.chunks_exact(period).enumerate() {
        if last == Some(part) {
            continue;
        }
        let got = Array::from_bytes(dtype, &base.shape, part).map_err(|e| e.to_string())?;
        same(&base, &got, case.row.bound).map_err(|why| format!("copy {copy} of {copies}: {why}"))?;
        last = Some(part);
    }
    Ok(())
}

/// A graph of the case with all rows repeated: the first operand in memory, the others as a view.
fn large(case: &Case<'_>, copies: usize) -> Result<Graph, String> {
    let mut graph = Graph::new("many");
    let mut values: Vec<Value> = vec![];
    for (i, operand) in case.operands.iter().enumerate() {
        let mut dims = operand.dims.clone();
        if i == 0 {
            dims[0] *= copies;
        }
        let mut value = leaf(&mut graph, &format!("c.{i}"), operand, &dims)?;
        if i > 0 && !operand.shared && operand.leaf == Leaf::Input {
            let mut add = |op, v| graph.add(op, &[v]).map_err(|e| e.to_string());
            let split: Vec<usize> = [&[1], operand.dims.as_slice()].concat();
            let repeated: Vec<usize> = [&[copies], operand.dims.as_slice()].concat();
            let merged: Vec<usize> = [&[copies * operand.dims[0]], &operand.dims[1..]].concat();
            value = add(Op::Reshape(Shape::from(split)), value)?;
            value = add(Op::Broadcast(Shape::from(repeated)), value)?;
            value = add(Op::Reshape(Shape::from(merged)), value)?;
        }
        values.push(value);
    }
    let result = (case.row.build)(&mut graph, &values)?;
    graph.output("c", result).map_err(|e| e.to_string())?;
    Ok(graph)
}

/// Workgroups of the largest kernel, those included that its loop stands for.
fn groups(device: &Device, graph: &Graph) -> Result<u64, String> {
    let module = tallow_codegen::compile(graph, caps(device)).map_err(|e| e.to_string())?;
    let of = |kernel: &tallow_codegen::Kernel| kernel.grid.iter().map(tallow_codegen::Count::most).product();
    Ok(module.kernels.iter().map(of).max().unwrap_or(0))
}

/// Ops whose rows are not apart, on the interpreter as well.
fn undivided(device: &Device, case: &Case<'_>) -> Result<(), String> {
    let mut rows = 1000 * PERIOD;
    let large = loop {
        rows += rows / 4;
        let mut dims = (case.row.dims)(Class::Many);
        dims[0] = rows;
        if rows * dims[1..].iter().product::<usize>() > LIMIT {
            return Err(format!("{rows} rows take no {MOST} workgroups"));
        }
        let shapes = (case.row.operands)(&dims, case.dtype);
        let mut graph = Graph::new("many");
        let mut values = vec![];
        for (i, operand) in shapes.iter().enumerate() {
            values.push(leaf(&mut graph, &format!("c.{i}"), operand, &operand.dims)?);
        }
        let result = (case.row.build)(&mut graph, &values)?;
        graph.output("c", result).map_err(|e| e.to_string())?;
        if groups(device, &graph)? > MOST {
            break Case::of_shape(case.row, case.dtype, Class::Many, &dims);
        }
    };
    let graph = large.graph()?;
    let want = large.interpret(&graph)?;
    let mut inputs = Inputs::default();
    large.fill("c", &mut inputs, false);
    drop(large);
    let (dtype, shape, bytes) = output(device, &graph, &inputs)?;
    let got = Array::from_bytes(dtype, &shape, &bytes).map_err(|e| e.to_string())?;
    same(&want, &got, case.row.bound)
}

/// Compiles and runs a graph of one output.
fn output(device: &Device, graph: &Graph, inputs: &Inputs) -> Result<(DType, Vec<usize>, Vec<u8>), String> {
    let output = outputs(device, graph, inputs).map_err(|e| e.to_string())?.remove(0);
    Ok((output.dtype, output.shape, output.bytes))
}
