//! What all attention kernels have: the node and its extents, loads of queries, keys and values, and stores of results.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{AttentionForm, output_root};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{Attention as Attributes, DType, DeviceCaps, Dim, ElementwiseOp, NodeId, Op, Value};

use crate::assemble::check_grid;
use crate::blocks::operand::{self, WIDE};
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::Count;
use crate::scalar;

/// An attention: its operands, their extents, and the type of scores and sums.
pub(crate) struct Attention<'a> {
    pub id: NodeId,
    pub attrs: Attributes,
    pub q: Value,
    pub k: Value,
    pub v: Value,
    pub bias: Option<Value>,
    pub sinks: Option<Value>,
    /// Heads, queries, and elements of a query or key.
    pub h: &'a Dim,
    pub s: &'a Dim,
    pub d: &'a Dim,
    /// Heads of keys, keys, and elements of a value.
    pub g: &'a Dim,
    pub t: &'a Dim,
    pub width: &'a Dim,
    /// f64 if an operand is f64, else f32.
    pub wide: DType,
    pub ty: Glsl,
}

/// A constant extent as a number, 1 for others.
pub(crate) fn number(dim: &Dim) -> u32 {
    dim.as_const().unwrap_or(1) as u32
}

/// The grid of `what` along x and y: for each an extent, and how much of it a workgroup has.
///
/// # Errors
/// If the device does not start as many workgroups.
pub(super) fn grid(
    caps: &DeviceCaps,
    what: &'static str,
    [x, y]: [(&Dim, u32); 2],
) -> Result<[Count; 3], CodegenError> {
    let count = |axis, (n, per): (&Dim, u32)| Count::along(caps, axis, n.clone(), per);
    let grid = [count(0, x), count(1, y), Count::constant(1)];
    check_grid(what, &grid)?;
    Ok(grid)
}

impl<'a> Attention<'a> {
    pub fn of(e: &Emitter<'a>, form: &AttentionForm) -> Result<Self, CodegenError> {
        let node = e.body.node(form.node);
        let (Op::Attention(attrs), [q, k, v, ..]) = (&node.op, &node.operands[..]) else {
            return Err(CodegenError::Node(e.body.node_text(form.node)));
        };
        let [bias, sinks] = attrs.bias_and_sinks(&node.operands).map(|value| value.copied());
        Ok(Attention { sinks, ..Attention::with(e, form.node, *attrs, [*q, *k, *v], bias)? })
    }

    /// The attention without sinks of these operands in a node that may have others, too.
    pub fn with(
        e: &Emitter<'a>,
        id: NodeId,
        attrs: Attributes,
        [q, k, v]: [Value; 3],
        bias: Option<Value>,
    ) -> Result<Self, CodegenError> {
        let body = e.body;
        let node = body.node(id);
        let refused = || CodegenError::Node(body.node_text(id));
        let dims = |value: Value| body.ty(value).shape.dims();
        let ([h, s, d], [g, t, width]) = (dims(q), dims(v)) else { return Err(refused()) };
        let (mut wide, mut ty) = (DType::F32, Glsl::Float);
        for value in &node.operands {
            let dtype = body.ty(*value).dtype;
            match Glsl::of(dtype, e.caps) {
                Some(Glsl::Double) => (wide, ty) = (DType::F64, Glsl::Double),
                Some(Glsl::Float) => {}
                Some(Glsl::Uint | Glsl::Int | Glsl::Long) | None => {
                    return Err(CodegenError::Dtype { what: body.node_text(id), dtype });
                }
            }
        }
        Ok(Attention { id, attrs, q, k, v, bias, sinks: None, h, s, d, g, t, width, wide, ty })
    }

    /// The grid of a kernel whose workgroups each process `queries` queries of a head.
    pub fn grid(&self, e: &Emitter<'_>, queries: u32) -> Result<[Count; 3], CodegenError> {
        grid(e.caps, "attention", [(self.s, queries), (self.h, 1)])
    }

    /// The grid of a kernel whose workgroups each process a tile of `queries` queries of a head, heads first: the longest tiles
    /// of all heads, which see most keys, start before the shorter ones, so that workgroups end together.
    pub fn grid_by_heads(&self, e: &Emitter<'_>, queries: u32) -> Result<[Count; 3], CodegenError> {
        grid(e.caps, "attention", [(self.h, 1), (self.s, queries)])
    }

    /// The bias of the score of head `h`, query `s` and key `t`, and the lines that compute it.
    pub fn bias_at(&self, e: &mut Emitter<'_>) -> Result<(String, Vec<String>), CodegenError> {
        e.scope(|e| {
            let [h, s, t] =
                [(self.h, "h"), (self.s, "s"), (self.t, "t")].map(|(extent, name)| e.atom(extent, name));
            self.bias(e, [&h, &s, &t])
        })
    }

    /// The holes of the sink of head `h`: the lines that compute it, how far it is `over` the maximum `now`, its weight relative
    /// to the larger of both, and the root of that of `now`. `None` without sinks.
    ///
    /// Values are multiplied by the root twice, so that neither it nor the sum of weights leaves the range of the type.
    fn sink_at(&self, e: &mut Emitter<'_>) -> Result<Option<Hole>, CodegenError> {
        let Some(sinks) = self.sinks else { return Ok(None) };
        let (value, lines) = e.scope(|e| {
            let h = e.atom(self.h, "h");
            self.element(e, sinks, &[h])
        })?;
        let ty = self.ty.name();
        let mut exp = |x: String| scalar::elementwise(ElementwiseOp::Exp, self.ty, self.wide, &[x], e.uses());
        let fade = exp(format!("{ty}(-0.5) * max(over, {ty}(0.0))"));
        let weight = exp(format!("min(over, {ty}(0.0))"));
        Ok(Some(
            context! { over => format!("{value} - now"), value, lines => lines.join("\n"), fade, weight },
        ))
    }

    /// The lines that store element `e` of the result of head `h` and query `s`.
    pub fn store_at(&self, e: &mut Emitter<'_>) -> Result<Vec<String>, CodegenError> {
        e.scoped_lines(|e| {
            let at =
                [(self.h, "h"), (self.s, "s"), (self.width, "e")].map(|(extent, name)| e.atom(extent, name));
            self.store(e, at)
        })
    }

    /// The holes of all templates. `score` is the variable that a template bounds and exponentiates.
    ///
    /// # Errors
    /// If the sinks cannot be read.
    pub fn holes(&self, e: &mut Emitter<'_>, score: &str) -> Result<Hole, CodegenError> {
        let (t, s_extent) = (e.dim(self.t), e.dim(self.s));
        let cap = self.attrs.softcap.map(|c| self.ty.literal(c.as_f64())).unwrap_or_default();
        Ok(context! {
            type => self.ty.name(), zero => self.ty.literal(0.0), hidden => self.ty.literal(f64::NEG_INFINITY),
            d => number(self.d), e => number(self.width), t, s_extent, cap, capped => self.capped(e, score),
            causal => self.attrs.causal, window => self.attrs.window,
            group => number(self.h) / number(self.g).max(1),
            scale => self.ty.literal(self.attrs.scale.as_f64()),
            exp_score => self.exp(e, score), exp_top => self.exp(e, "top"), sink => self.sink_at(e)?,
        })
    }

    /// `score` divided by the bound on scores, and its hyperbolic tangent; empty without a bound.
    fn capped(&self, e: &mut Emitter<'_>, score: &str) -> String {
        let Some(cap) = self.attrs.softcap else { return String::new() };
        let x = format!("{score} / {}", self.ty.literal(cap.as_f64()));
        scalar::elementwise(ElementwiseOp::Tanh, self.ty, self.wide, &[x], e.uses())
    }

    /// The weight of score `x` relative to the maximum `now`.
    pub fn exp(&self, e: &mut Emitter<'_>, x: &str) -> String {
        scalar::elementwise(ElementwiseOp::Exp, self.ty, self.wide, &[format!("{x} - now")], e.uses())
    }

    /// An element of an operand, converted to the type of scores and sums.
    pub fn element(&self, e: &mut Emitter<'_>, value: Value, at: &[Index]) -> Result<String, CodegenError> {
        let text = e.value(value, at)?.text;
        Ok(if self.wide == DType::F64 {
            scalar::cast(e.body.ty(value).dtype, self.wide, &text, e.uses())
        } else {
            text
        })
    }

    /// The bias of a head, query and key; empty without a bias.
    pub fn bias(&self, e: &mut Emitter<'_>, at: [&Index; 3]) -> Result<String, CodegenError> {
        let Some(bias) = self.bias else { return Ok(String::new()) };
        let extents = e.body.ty(bias).shape.dims();
        let repeated = |(n, at): (&Dim, &Index)| if n.is(1) { Index::default() } else { at.clone() };
        let at: Vec<Index> = extents.iter().zip(at).map(repeated).collect();
        self.element(e, bias, &at)
    }

    /// Emits the stores of `result` to all outputs, as the element of a head, query and column.
    pub fn store(&self, e: &mut Emitter<'_>, at: [Index; 3]) -> Result<(), CodegenError> {
        let ty = e.body.node(self.id).types[0].clone();
        let text = match (self.wide, ty.dtype) {
            (wide, dtype) if wide == dtype => "result".into(),
            (DType::F64, dtype) => scalar::cast(self.wide, dtype, "result", e.uses()),
            // Floats narrower than f32 remain in f32 where possible.
            (_, dtype) => scalar::held(dtype, "result".into(), e.uses()),
        };
        let depth = e.depth();
        e.anchors.insert(self.id, Anchor::Var(Expr { text, depth }));
        let linear = e.atoms.flatten(&at, &ty.shape);
        for output in 0..e.body.outputs().len() {
            let buffer = e.result(output as u32);
            let at = e.atoms.unflatten(&linear, &e.body.ty(output_root(e.body, output)).shape);
            e.store(output as u32, buffer, &at)?;
        }
        Ok(())
    }
}

/// Lanes of a team: those that together read a key or value of up to `elements` elements, eight each. `None` if a
/// subgroup would have several teams and the device cannot combine them.
pub(crate) fn team(caps: &DeviceCaps, elements: u32) -> Option<u32> {
    let lanes = elements.div_ceil(WIDE as u32).next_power_of_two().min(caps.scheduled_subgroup_size());
    (lanes == caps.scheduled_subgroup_size() || caps.subgroup_shuffle).then_some(lanes)
}

/// Eight adjacent elements of a row, from any multiple of eight on.
pub(crate) struct Eight {
    buffer: usize,
    /// The position of the row in the buffer.
    base: String,
}

impl Eight {
    /// Requires [`has_eights`].
    pub fn of(e: &mut Emitter<'_>, value: Value, row: &[Index]) -> Result<Eight, CodegenError> {
        let found = neighbours_of(e, value, row);
        let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
        Ok(Eight { buffer, base: e.index(&base)?.text })
    }

    /// The line that loads the elements from `at` on into `w`.
    pub fn load(&self, e: &mut Emitter<'_>, at: &str) -> String {
        e.buffers[self.buffer].load_eight(&format!("{} + {at}", self.base), "w")
    }

    /// The load of the elements from `at` on as one word. Requires [`is_one_load`], or a buffer of f16.
    pub fn word(&self, e: &Emitter<'_>, at: &str) -> String {
        format!("wide{}(({} + {at}) >> 3)", e.buffers[self.buffer].binding, self.base)
    }

    /// The function that widens such a word.
    pub fn widen(&self, e: &mut Emitter<'_>) -> String {
        let buffer = &mut e.buffers[self.buffer];
        buffer.widens = true;
        format!("widen8_{}", buffer.binding)
    }
}

/// The lines that find a row of `value [heads, rows, width]`, and the loads of the row's elements. The variable `name`
/// counts rows.
pub(crate) fn row(
    e: &mut Emitter<'_>,
    value: Value,
    head: &Index,
    name: &str,
) -> Result<(Eight, Vec<String>), CodegenError> {
    e.scope(|e| {
        let rows = e.body.ty(value).shape.dims()[1].clone();
        let row = e.atom(&rows, name);
        Eight::of(e, value, &[head.clone(), row])
    })
}

/// Whether eight adjacent elements of a row of `value`, from any multiple of eight on, are contiguous in a buffer.
pub(crate) fn has_eights(e: &mut Emitter<'_>, value: Value) -> bool {
    let Some((last, rows)) = e.body.ty(value).shape.dims().split_last() else { return false };
    let rows: Vec<Index> = rows.iter().map(|n| e.atoms.free(n)).collect();
    last.div_exact(&WIDE.into()).is_some() && neighbours_of(e, value, &rows).is_some()
}

/// Whether eight adjacent elements of `value` are one load that may be prefetched before the kernel knows the number of
/// rows. No row below `rows` may lie past the end of the buffer.
pub(crate) fn is_one_load(e: &mut Emitter<'_>, value: Value, rows: i64) -> bool {
    let [g, _, last] = e.body.ty(value).shape.dims() else { return false };
    let row = [e.atoms.free(g), e.atoms.free(&Dim::constant(rows))];
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let at = [&row[..], &[e.atoms.index(probe)]].concat();
    let Some((buffer, base)) = operand::one_load(e, value, &at, probe) else { return false };
    let end = e.atoms.max(&base).map(|at| at.max_value() + last.max_value());
    end.is_some_and(|end| u64::try_from(end).is_ok_and(|end| end <= e.buffers[buffer].elements))
}

fn neighbours_of(e: &mut Emitter<'_>, value: Value, row: &[Index]) -> Option<(usize, Index)> {
    let last = &e.body.ty(value).shape.dims()[row.len()];
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let at = [row, &[e.atoms.index(probe)]].concat();
    operand::wide(e, value, &at, probe)
}
