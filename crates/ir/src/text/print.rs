//! Graph to text.

use std::fmt;

use crate::custom::{Custom, CustomCode};
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::scalar::Scalar;
use crate::sort::SortSpan;

/// Prints operands, with `.result` only where a node has several.
fn value(graph: &Graph, v: Value) -> String {
    if graph.node(v.node).types.len() == 1 {
        format!("%{}", v.node.0)
    } else {
        format!("%{}.{}", v.node.0, v.result)
    }
}

/// A constant so that parsing gives the same bits back.
fn scalar(s: Scalar) -> String {
    if s.dtype().is_float() {
        let x = s.as_f64();
        if x.is_nan() {
            "nan".into()
        } else if x.is_infinite() {
            if x > 0.0 { "inf".into() } else { "-inf".into() }
        } else {
            format!("{x:?}")
        }
    } else {
        s.as_i64().to_string()
    }
}

/// Name, attributes and code of a custom kernel.
fn custom(c: &Custom) -> String {
    fn list<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
        let texts: Vec<String> = all.into_iter().map(|x| x.to_string()).collect();
        format!("[{}]", texts.join(","))
    }
    let kernel = &*c.kernel;
    let code = match &kernel.code {
        CustomCode::Glsl(text) => format!("glsl={text:?}"),
        CustomCode::Spirv(words) => format!("spirv={}", list(words.iter().map(|w| format!("{w:08x}")))),
    };
    format!(
        "{:?} inputs={} push={} workgroup={} invocations={} {code}",
        kernel.name,
        list(&kernel.inputs),
        list(&c.push),
        list(kernel.workgroup),
        list(&c.invocations),
    )
}

/// Op name, operands and attributes: everything of a line between `=` and `:`.
pub(crate) fn expression(graph: &Graph, node: &Node) -> String {
    let mut words = vec![node.op.name().to_string()];
    words.extend(node.operands.iter().map(|v| value(graph, *v)));
    match &node.op {
        Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } => {
            words.push(format!("{name:?}"))
        }
        Op::Param { index, .. } => words.push(index.to_string()),
        Op::Const(s) => words.push(scalar(*s)),
        Op::DimValue { dim, .. } => words.push(format!("{{{dim}}}")),
        Op::Scalar { symbol, .. } => words.push(format!("{{{}}}", symbol.name())),
        Op::Permute(axes) => words.push(format!("{axes:?}").replace(' ', "")),
        Op::Reduce { axes, .. } => words.push(format!("axes={axes:?}").replace(' ', "")),
        Op::Slice { axis, start, len } => words.push(format!("axis={axis} start={start} len={len}")),
        Op::Flip { axis } | Op::Concat { axis } | Op::Gather { axis } => words.push(format!("axis={axis}")),
        Op::Window { axis, size, stride, dilation } => {
            words.push(format!("axis={axis} size={size} stride={stride} dilation={dilation}"));
        }
        Op::Pad { axis, before, after, value } => {
            words.push(format!("axis={axis} before={before} after={after} value={}", scalar(*value)));
        }
        Op::Scan { axis, part, .. } => {
            words.push(format!("axis={axis}"));
            words.extend(part.map(|part| format!("part={part}")));
        }
        Op::ArgSort { axis, descending, span } => {
            words.push(format!("axis={axis} descending={descending}"));
            match span {
                SortSpan::All => {}
                SortSpan::First(count) => words.push(format!("first={count}")),
                SortSpan::Runs(run) => words.push(format!("run={run}")),
            }
        }
        Op::MergeRuns { axis, descending, run } => {
            words.push(format!("axis={axis} descending={descending} run={run}"));
        }
        Op::Attention(a) | Op::AttentionGrad(a, _) => {
            words.push(format!("scale={} causal={}", scalar(a.scale), a.causal));
            words.extend(a.window.map(|w| format!("window={w}")));
            words.extend(a.softcap.map(|c| format!("softcap={}", scalar(c))));
            words.extend(a.round_weights.then(|| "round_weights=true".to_string()));
            words.extend(a.sinks.then(|| "sinks=true".to_string()));
        }
        Op::StateUpdate { offsets, rows } => {
            words.extend(rows.map(|axis| format!("axis={axis}")));
            let list: Vec<String> = offsets.iter().map(|o| o.to_string()).collect();
            words.push(format!("at=[{}]", list.join(",")));
        }
        Op::Custom(c) => words.push(custom(c)),
        Op::Fusion(f) => {
            words.insert(1, f.kind.name().into());
            words.extend((f.run > 0).then(|| format!("run={}", f.run)));
        }
        Op::Iota { .. }
        | Op::Elementwise(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Matmul
        | Op::Scatter(_)
        | Op::IndexAdd
        | Op::Dequantize(_)
        | Op::Quantize(_) => {}
    }
    words.join(" ")
}

fn write_body(graph: &Graph, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
    let pad = " ".repeat(indent);
    for symbol in graph.symbols() {
        let least = if symbol.least() > 0 { format!("{} <= ", symbol.least()) } else { String::new() };
        writeln!(f, "{pad}symbol {least}{} <= {}", symbol.name(), symbol.limit())?;
    }
    for (id, node) in graph.nodes() {
        let types: Vec<String> = node.types.iter().map(|t| t.to_string()).collect();
        write!(f, "{pad}%{} = {} : {}", id.0, expression(graph, node), types.join(", "))?;
        if let Op::Fusion(fusion) = &node.op {
            writeln!(f, " {{")?;
            write_body(&fusion.body, f, indent + 2)?;
            write!(f, "{pad}}}")?;
        }
        writeln!(f)?;
    }
    for output in graph.outputs() {
        if output.name.is_empty() {
            writeln!(f, "{pad}return {}", value(graph, output.value))?;
        } else {
            writeln!(f, "{pad}return {} as {:?}", value(graph, output.value), output.name)?;
        }
    }
    Ok(())
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {:?} {{", self.name())?;
        write_body(self, f, 2)?;
        writeln!(f, "}}")
    }
}

impl Graph {
    /// The lines of the body without the enclosing `graph "name" { }`, for comments in generated code.
    pub fn body_text(&self) -> String {
        struct Body<'a>(&'a Graph);
        impl fmt::Display for Body<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_body(self.0, f, 0)
            }
        }
        Body(self).to_string()
    }

    /// Op, operands and attributes of one node as text, e.g. `add %1 %2`; of a user's kernel the name alone, since
    /// this goes into messages and comments.
    pub fn node_text(&self, id: crate::NodeId) -> String {
        let node = self.node(id);
        match &node.op {
            Op::Custom(c) => format!("custom {:?}", c.kernel.name),
            _ => expression(self, node),
        }
    }
}
