//! What a run needs, checked before anything is computed, so that an error leaves the states as they were.

use std::collections::HashSet;

use tallow_ir::{Bindings, FusionKind, Graph, NodeId, Op, TensorType, Value, verify};

use crate::array::Array;
use crate::env::Env;
use crate::error::Error;

/// Checks symbols, bounds, structure, and the leaves among the nodes that `needed` marks.
pub fn check(graph: &Graph, env: &Env, needed: &[bool]) -> Result<(), Error> {
    symbols(graph, &env.symbols)?;
    bounds(graph, &env.symbols)?;
    structure(graph, false)?;
    for (id, node) in graph.nodes().filter(|(id, _)| needed[id.index()]) {
        let (what, name, ty, given) = match &node.op {
            Op::Input { name, ty } => ("input", name, ty, env.inputs.get(name).map(|a| &**a)),
            Op::Weight { name, ty } => ("weight", name, ty, env.weights.get(name).map(|a| &**a)),
            Op::State { name, ty } => ("state", name, ty, env.states.get(name)),
            _ => continue,
        };
        let given = given.ok_or_else(|| Error::Missing { what, name: name.clone() })?;
        let shape = shape_of(ty, &env.symbols, id)?;
        if given.ty != ty.dtype || given.shape != shape || !given.is_sound() {
            let expected = format!("{}{shape:?}", ty.dtype);
            return Err(Error::Mismatch { what, name: name.clone(), expected, got: describe(given) });
        }
    }
    Ok(())
}

fn describe(array: &Array) -> String {
    let note = if array.is_sound() { "" } else { " with data of another type or length" };
    format!("{}{:?}{note}", array.ty, array.shape)
}

fn symbols(graph: &Graph, bindings: &Bindings) -> Result<(), Error> {
    for symbol in graph.symbols() {
        let name = symbol.name().to_string();
        match bindings.get(symbol.name()) {
            None => return Err(Error::UnboundSymbol { name }),
            Some(&value) if value > u64::from(symbol.limit()) => {
                return Err(Error::SymbolAboveMaximum { name, value, max: symbol.limit() });
            }
            Some(&value) if !symbol.contains(value) => {
                return Err(Error::SymbolBelowMinimum { name, value, min: symbol.least() });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn bounds(graph: &Graph, bindings: &Bindings) -> Result<(), Error> {
    for (end, extent) in graph.constraints() {
        let value = |dim: &tallow_ir::Dim| dim.eval(bindings).ok_or_else(|| no_value(NodeId(0), dim));
        let (end_value, extent_value) = (value(&end)?, value(&extent)?);
        if end_value > extent_value {
            let (end, extent) = (end.to_string(), extent.to_string());
            return Err(Error::OutOfBounds { end, end_value, extent, extent_value });
        }
    }
    Ok(())
}

/// The rules of the verifier that no type inference enforces and that a run relies on.
fn structure(graph: &Graph, is_body: bool) -> Result<(), Error> {
    let wrong = |id: NodeId, why: String| Err(Error::Malformed { node: id.0, why });
    let params = graph.params().len();
    let mut updated = HashSet::new();
    for (version, id) in verify::updates(graph) {
        if !updated.insert(version) {
            return wrong(id, format!("updates %{}, which another node updates too", version.node.0));
        }
        // A scatter kernel writes in place what a kernel before it computed.
        let scatters = matches!(&graph.node(id).op, Op::Fusion(f) if f.kind == FusionKind::Scatter);
        let target = scatters && matches!(graph.op(version), Op::Fusion(_));
        if !target && !is_version(graph, version) {
            return wrong(id, format!("updates %{}, which is not a state", version.node.0));
        }
    }
    for (id, node) in graph.nodes() {
        match &node.op {
            Op::Param { .. } if !is_body => return wrong(id, "param outside a fusion body".into()),
            Op::Param { index, .. } if *index as usize >= params => {
                return wrong(id, format!("param {index} of {params}"));
            }
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Fusion(_) if is_body => {
                return wrong(id, format!("{} inside a fusion body", node.op.name()));
            }
            Op::Fusion(fusion) => structure(&fusion.body, true)?,
            _ => {}
        }
    }
    Ok(())
}

/// True for a state, a new version of one (whose own operand is checked in its turn), and a param, whose
/// operand is checked outside.
fn is_version(graph: &Graph, v: Value) -> bool {
    match graph.op(v) {
        Op::State { .. } | Op::Param { .. } | Op::StateUpdate { .. } => true,
        Op::Fusion(fusion) => verify::updated_param(fusion, v.result).is_some(),
        _ => false,
    }
}

/// The extents of `ty` under `bindings`.
pub fn shape_of(ty: &TensorType, bindings: &Bindings, id: NodeId) -> Result<Vec<usize>, Error> {
    let why = || format!("{ty} has no extents under these symbol values");
    ty.shape.eval(bindings).ok_or_else(|| Error::Malformed { node: id.0, why: why() })
}

/// An expression that cannot be evaluated.
pub fn no_value(id: NodeId, dim: &tallow_ir::Dim) -> Error {
    Error::Malformed { node: id.0, why: format!("{dim} has no value under these symbol values") }
}
