//! Reductions over a workgroup or by single invocations: the functions, and the loop that feeds them.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value as Hole, context};
use tallow_ir::form::Rows;
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Graph, NodeId, Op, ReduceKind};

use crate::emit::{Anchor, Emitter, Expr};
use crate::kernel::CodegenError;
use crate::scalar::{self, Glsl};
use crate::template::render;

/// The reductions that a kernel calls.
#[derive(Default)]
pub(crate) struct Used {
    functions: BTreeMap<String, Hole>,
    args: BTreeMap<String, Hole>,
    types: BTreeSet<Glsl>,
}

fn word(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "sum",
        ReduceKind::Prod => "prod",
        ReduceKind::Max => "max",
        ReduceKind::Min => "min",
        ReduceKind::ArgMax => "largest",
        ReduceKind::ArgMin => "smallest",
    }
}

/// The neutral element as a literal.
fn identity(kind: ReduceKind, ty: Glsl, dtype: DType) -> String {
    let (low, high) = match (ty, dtype) {
        (Glsl::Float | Glsl::Double, _) => (ty.literal(f64::NEG_INFINITY), ty.literal(f64::INFINITY)),
        (_, DType::U8) => (ty.int_literal(0), ty.int_literal(255)),
        (_, DType::I16) => (ty.int_literal(i16::MIN.into()), ty.int_literal(i16::MAX.into())),
        (Glsl::Uint, _) => (ty.int_literal(0), ty.int_literal(u32::MAX.into())),
        (Glsl::Int, _) => (ty.int_literal(i32::MIN.into()), ty.int_literal(i32::MAX.into())),
        (Glsl::Long, _) => (ty.int_literal(i64::MIN), ty.int_literal(i64::MAX)),
    };
    match kind {
        ReduceKind::Sum => ty.int_literal(0),
        ReduceKind::Prod => ty.int_literal(1),
        ReduceKind::Max | ReduceKind::ArgMax => low,
        ReduceKind::Min | ReduceKind::ArgMin => high,
    }
}

/// `x` combined with `y` as an expression.
pub(crate) fn combine(kind: ReduceKind, ty: Glsl, x: &str, y: &str) -> String {
    match (kind, ty) {
        (ReduceKind::Sum, _) => format!("{x} + {y}"),
        (ReduceKind::Prod, _) => format!("{x} * {y}"),
        (ReduceKind::Max | ReduceKind::ArgMax, Glsl::Float | Glsl::Double) => format!("max_of({x}, {y})"),
        (ReduceKind::Min | ReduceKind::ArgMin, Glsl::Float | Glsl::Double) => format!("min_of({x}, {y})"),
        // Not max() and min(): spirv-opt's constant propagation takes `acc = max(acc, c)` in a loop for the start
        // value of acc, since it cannot evaluate the extended instruction (shaderc 0.10).
        (ReduceKind::Max | ReduceKind::ArgMax, _) => format!("{x} > {y} ? {x} : {y}"),
        (ReduceKind::Min | ReduceKind::ArgMin, _) => format!("{x} < {y} ? {x} : {y}"),
    }
}

impl Used {
    /// The name of the workgroup function for a value reduction.
    pub fn value(&mut self, kind: ReduceKind, ty: Glsl, dtype: DType) -> String {
        let name = format!("workgroup_{}_{}", word(kind), ty.word());
        let subgroup = match kind {
            // Subgroup operations on 64 bits are a feature of their own.
            _ if ty.bytes() > 4 => "",
            ReduceKind::Sum => "subgroupAdd",
            ReduceKind::Prod => "subgroupMul",
            ReduceKind::Max | ReduceKind::ArgMax => "subgroupMax",
            ReduceKind::Min | ReduceKind::ArgMin => "subgroupMin",
        };
        let nan = ty == Glsl::Float && matches!(kind, ReduceKind::Max | ReduceKind::Min);
        self.types.insert(ty);
        let (scratch, to, from) = scratch(ty);
        let hole = context! {
            name => name.clone(), type => ty.name(), subgroup => subgroup, nan => nan, scratch => scratch, to => to,
            from => from, identity => identity(kind, ty, dtype), combine => combine(kind, ty, "x", "y"),
        };
        self.functions.insert(name.clone(), hole);
        name
    }

    /// The name of the workgroup function for an index reduction.
    pub fn arg(&mut self, kind: ReduceKind, ty: Glsl) -> String {
        let name = format!("workgroup_arg_{}_{}", word(kind), ty.word());
        self.types.insert(ty);
        let (scratch, to, from) = scratch(ty);
        let hole = context! {
            name => name.clone(), word => word(kind), type => ty.name(), scratch => scratch, to => to, from => from,
            better => better(kind, ty, "y", "x"), worse => better(kind, ty, "x", "y"),
        };
        self.args.insert(name.clone(), hole);
        name
    }

    /// Bytes of shared memory that the functions use.
    pub fn shared_bytes(&self, workgroup: u32) -> u32 {
        if self.functions.is_empty() && self.args.is_empty() {
            return 0;
        }
        let arrays = self.scratches().values().sum::<u32>() + if self.args.is_empty() { 0 } else { 4 };
        workgroup * arrays
    }

    /// Shared arrays that are declared, with the bytes of their elements.
    fn scratches(&self) -> BTreeMap<&'static str, u32> {
        // The array of floats is always there.
        self.types.iter().chain([&Glsl::Float]).map(|ty| (scratch(*ty).0, ty.bytes())).collect()
    }

    /// GLSL of all functions used.
    pub fn render(&self, workgroup: u32, caps: &DeviceCaps) -> Result<String, CodegenError> {
        if self.functions.is_empty() && self.args.is_empty() {
            return Ok(String::new());
        }
        let kinds: Vec<&str> = if self.args.is_empty() { vec![] } else { vec!["arg"] };
        let holes = context! {
            slots => workgroup, half => workgroup / 2, subgroup => caps.subgroup_arithmetic, kinds => kinds,
            types => self.scratches().into_keys().collect::<Vec<&str>>(), reductions => self.functions.values().cloned().collect::<Vec<_>>(),
            args => self.args.values().cloned().collect::<Vec<_>>(),
        };
        render("reduce.glsl", holes)
    }
}

/// Shared array and conversions; integers of either sign share one.
fn scratch(ty: Glsl) -> (&'static str, &'static str, &'static str) {
    match ty {
        Glsl::Float => ("scratch_float", "", ""),
        Glsl::Uint => ("scratch_uint", "", ""),
        Glsl::Int => ("scratch_uint", "uint", "int"),
        Glsl::Long => ("scratch_long", "", ""),
        Glsl::Double => ("scratch_double", "", ""),
    }
}

/// Whether `a` comes before `b`; the first NaN comes before everything else.
fn better(kind: ReduceKind, ty: Glsl, a: &str, b: &str) -> String {
    let sign = if kind == ReduceKind::ArgMin { "<" } else { ">" };
    match ty {
        Glsl::Float | Glsl::Double => format!("({a} {sign} {b} || (is_nan({a}) && !is_nan({b})))"),
        Glsl::Uint | Glsl::Int | Glsl::Long => format!("{a} {sign} {b}"),
    }
}

/// For each reduction the number of the pass over the row in which it can be computed: 1 + that of the
/// reductions on which it depends.
fn passes(body: &Graph, reduces: &[(NodeId, Rows)]) -> Vec<usize> {
    let mut level = vec![0; body.len()];
    for (id, node) in body.nodes() {
        let below = node.operands.iter().map(|v| level[v.node.index()]).max().unwrap_or(0);
        let own = usize::from(reduces.iter().any(|(r, _)| *r == id));
        level[id.index()] = below + own;
    }
    reduces.iter().map(|(id, _)| level[id.index()]).collect()
}

/// Who reduces a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All invocations of a workgroup of this size; each gets the result.
    Workgroup(u32),
    /// One invocation.
    Alone,
}

impl Share {
    /// The head of a loop over the elements of a row.
    pub fn each(self, end: &str) -> String {
        match self {
            Share::Workgroup(size) => format!("for (uint i = lane; i < {end}; i += {size}u)"),
            Share::Alone => format!("for (uint i = 0u; i < {end}; ++i)"),
        }
    }
}

/// Emits the passes over one row and binds each reduction to the variable that holds its result.
///
/// Reductions of one level share a loop, so a row is read as few times as their dependencies allow.
pub(crate) fn emit(
    e: &mut Emitter<'_>,
    used: &mut Used,
    reduces: &[(NodeId, Rows)],
    row: &Index,
    share: Share,
) -> Result<(), CodegenError> {
    let levels = passes(e.body, reduces);
    for level in 1..=levels.iter().copied().max().unwrap_or(0) {
        let now: Vec<&(NodeId, Rows)> =
            reduces.iter().zip(&levels).filter(|(_, l)| **l == level).map(|(r, _)| r).collect();
        let mut results = vec![];
        for (id, _) in &now {
            let (kind, ty, dtype) = describe(e.body, *id, e.caps)?;
            let acc = e.fresh_name("acc");
            let start = identity(kind, ty, dtype);
            e.line(format!("{} {acc} = {start};", ty.name()));
            if kind.is_arg() {
                e.line(format!("uint {acc}_at = 0xffffffffu;"));
            }
            results.push((*id, kind, ty, dtype, acc));
        }
        let inner = now[0].1.inner();
        e.open();
        let i = e.atom(&inner, "i");
        for ((id, kind, ty, _, acc), (_, rows)) in results.iter().zip(&now) {
            let at = rows.at(row, &i, &mut e.atoms);
            let operand = e.body.node(*id).operands[0];
            let x = e.value(operand, &at)?;
            if kind.is_arg() {
                let test = better(*kind, *ty, &x.text, acc);
                e.line(format!(
                    "if ({test} || {acc}_at == 0xffffffffu) {{ {acc} = {}; {acc}_at = i; }}",
                    x.text
                ));
            } else {
                e.line(format!("{acc} = {};", combine(*kind, *ty, acc, &x.text)));
            }
        }
        let end = e.dim(&inner);
        e.close_block(&share.each(&end));
        for (id, kind, ty, dtype, acc) in results {
            let name = e.fresh_name("r");
            let comment = format!("%{} = {}", id.0, e.body.node_text(id));
            let alone = share == Share::Alone;
            if kind.is_arg() {
                let text = if alone {
                    format!("{acc}_at")
                } else {
                    format!("{}({acc}, {acc}_at)", used.arg(kind, ty))
                };
                e.line(format!("uint {name} = {text};  // {comment}"));
                // Of nothing, the position is 0.
                if inner.min_value() < 1 {
                    e.line(format!("{name} = {name} == 0xffffffffu ? 0u : {name};"));
                }
            } else {
                let text = if alone { acc } else { format!("{}({acc})", used.value(kind, ty, dtype)) };
                let text = scalar::held(dtype, text);
                e.line(format!("{} {name} = {text};  // {comment}", ty.name()));
            }
            let depth = e.depth();
            e.anchors.insert(id, Anchor::Var(Expr { text: name, depth }));
        }
    }
    Ok(())
}

fn describe(body: &Graph, id: NodeId, caps: &DeviceCaps) -> Result<(ReduceKind, Glsl, DType), CodegenError> {
    let node = body.node(id);
    let Op::Reduce { kind, .. } = &node.op else { return Err(CodegenError::Node(body.node_text(id))) };
    let dtype = body.ty(node.operands[0]).dtype;
    let ty = Glsl::of(dtype, caps).ok_or_else(|| CodegenError::Dtype { what: body.node_text(id), dtype })?;
    Ok((*kind, ty, dtype))
}
