//! Elements of values: one expression per op of a body.

use tallow_ir::access::{operand_indices, selected_part};
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::{DType, Dim, ElementwiseOp, NodeId, Op, Value};

use super::{Anchor, Emitter, Expr, Place};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::identities::GatedTanh;
use crate::library as lib;
use crate::scalar;

impl Emitter<'_> {
    /// Element `at` of `value`, without the memo of [`Emitter::value`].
    pub(super) fn compute(&mut self, value: Value, at: &[Index]) -> Result<Expr, CodegenError> {
        let body = self.body;
        let node = body.node(value.node);
        if let Some(anchor) = self.anchors.get(&value.node).cloned() {
            return self.anchor(anchor, value, at);
        }
        match &node.op {
            Op::Param { index, .. } => self.param_element(value, *index, at),
            Op::Const(s) => Ok(Expr { text: self.glsl(value.node, s.dtype())?.constant(*s), depth: 0 }),
            Op::Iota { len, dtype } => {
                let i = self.index(&at[0])?;
                // Past 2^24, the conversion to f32 would round first.
                let text = if *dtype == DType::BF16 && len.max_value() > 1 << 24 {
                    self.uses_at(i.depth).call(lib::ODD_INT, i.text)
                } else {
                    scalar::from_uint(*dtype, &i.text, self.uses_at(i.depth))
                };
                self.define_as(value.node, *dtype, text, i.depth)
            }
            Op::DimValue { dim, dtype } => {
                let dim = self.dim(dim);
                let text = scalar::from_uint(*dtype, &dim, self.uses_at(0));
                self.define_as(value.node, *dtype, text, 0)
            }
            Op::Scalar { symbol, dtype } => {
                let bits = self.dim(&Dim::from(symbol));
                let float = format!("uintBitsToFloat({bits})");
                let text = scalar::cast(DType::F32, *dtype, &float, self.uses_at(0));
                self.define_as(value.node, *dtype, text, 0)
            }
            Op::Elementwise(op) => self.elementwise(value, *op, at),
            Op::Cast(to) => {
                let from = body.ty(node.operands[0]).dtype;
                self.glsl(value.node, from)?;
                let a = self.value(node.operands[0], at)?;
                let text = scalar::cast(from, *to, &a.text, self.uses_at(a.depth));
                if text == a.text { Ok(a) } else { self.define_as(value.node, *to, text, a.depth) }
            }
            Op::Dequantize(DType::F8E4M3) => {
                let a = self.operand(value.node, at)?;
                let text = scalar::held(DType::F8E4M3, a.text, self.uses_at(a.depth));
                self.define_as(value.node, DType::F32, text, a.depth)
            }
            Op::Dequantize(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. } => self.operand(value.node, at),
            Op::Pad { axis, before, value: filler, .. } => {
                let inside = self.operand(value.node, at)?;
                let len = body.ty(node.operands[0]).shape.dims()[*axis].clone();
                let test = self.within(&at[*axis], before, &len)?;
                let dtype = body.ty(value).dtype;
                let filler = self.glsl(value.node, dtype)?.constant(*filler);
                let text = format!("{} ? {} : {filler}", test.text, inside.text);
                self.define_as(value.node, dtype, text, test.depth.max(inside.depth))
            }
            Op::Concat { axis } => self.concat(value, at, *axis),
            Op::Gather { axis } => self.gather(value.node, *axis, at),
            Op::StateUpdate { .. } => self.value(node.operands[1], at),
            Op::Input { .. }
            | Op::Weight { .. }
            | Op::State { .. }
            | Op::Reduce { .. }
            | Op::Matmul
            | Op::Scan { .. }
            | Op::ArgSort { .. }
            | Op::MergeRuns { .. }
            | Op::Quantize(_)
            | Op::Scatter(_)
            | Op::IndexAdd
            | Op::Attention(_)
            | Op::AttentionGrad(..)
            | Op::Custom(_)
            | Op::Fusion(_) => Err(CodegenError::Node(body.node_text(value.node))),
        }
    }

    /// The register type of `dtype`, for an element of a node.
    fn glsl(&self, node: NodeId, dtype: DType) -> Result<Glsl, CodegenError> {
        let what = || self.body.node_text(node);
        Glsl::of(dtype, self.caps).ok_or_else(|| CodegenError::Dtype { what: what(), dtype })
    }

    /// Defines the variable of an element of type `dtype`.
    fn define_as(
        &mut self,
        node: NodeId,
        dtype: DType,
        text: String,
        depth: usize,
    ) -> Result<Expr, CodegenError> {
        let ty = self.glsl(node, dtype)?;
        Ok(self.define(ty, text, depth, node))
    }

    /// The element of a node's first operand that its element `at` reads.
    fn operand(&mut self, node: NodeId, at: &[Index]) -> Result<Expr, CodegenError> {
        let reads = operand_indices(self.body, node, at, &mut self.atoms);
        let reads = reads.ok_or_else(|| CodegenError::Node(self.body.node_text(node)))?;
        self.value(self.body.node(node).operands[0], &reads[0])
    }

    /// Whether the kernel updates this state.
    fn updates(&self, state: Value) -> bool {
        let is_it = |node: &tallow_ir::Node| {
            matches!(node.op, Op::StateUpdate { .. }) && node.operands.first() == Some(&state)
        };
        self.body.outputs().iter().any(|output| is_it(self.body.node(output.value.node)))
    }

    fn param_element(&mut self, value: Value, index: u32, at: &[Index]) -> Result<Expr, CodegenError> {
        let ty = self.body.ty(value);
        let read = self.glsl(value.node, ty.dtype)?;
        let linear = self.atoms.flatten(at, &ty.shape);
        let buffer = self.param(index);
        let stored = self.buffers[buffer].dtype;
        // Block formats of plain elements: their values are f32, like those of all blocks.
        let as_read = |e: &mut Self, text: String, depth: usize| match stored == ty.dtype {
            true => Ok(text),
            false => {
                e.glsl(value.node, stored).map(|_| scalar::cast(stored, DType::F32, &text, e.uses_at(depth)))
            }
        };
        if let Some(e) = self.grouped(value.node, index, &linear)? {
            return Ok(Expr { text: as_read(self, e.text, e.depth)?, depth: e.depth });
        }
        if let Some(loaded) = self.loads.get(&(index, linear.clone())) {
            return Ok(loaded.clone());
        }
        let i = self.index(&linear)?;
        let text = self.load(buffer, &i.text);
        let text = as_read(self, text, i.depth)?;
        let loaded = self.define(read, text, i.depth, value.node);
        if self.updates(value) {
            self.loads.insert((index, linear), loaded.clone());
        }
        Ok(loaded)
    }

    fn elementwise(&mut self, value: Value, op: ElementwiseOp, at: &[Index]) -> Result<Expr, CodegenError> {
        let body = self.body;
        let (node, dtype) = (body.node(value.node), body.ty(value).dtype);
        // GLSL has no double-precision exponential, and doubles would not gain from it.
        if self.glsl(value.node, dtype)? == Glsl::Float
            && let Some(gated) = GatedTanh::of(body, node)
        {
            let x = self.value(gated.x, at)?;
            let text = gated.text(Glsl::Float, &operand_text(x.text));
            return Ok(self.define(Glsl::Float, text, x.depth, value.node));
        }
        let mut args = vec![];
        for operand in &node.operands {
            args.push(self.value(*operand, at)?);
        }
        let depth = args.iter().map(|a| a.depth).max().unwrap_or(0);
        let of = body.ty(*node.operands.last().unwrap_or(&value)).dtype;
        let texts: Vec<String> = args.into_iter().map(|a| operand_text(a.text)).collect();
        let ty = self.glsl(value.node, of)?;
        let text = scalar::elementwise(op, ty, of, &texts, self.uses_at(depth));
        self.define_as(value.node, dtype, text, depth)
    }

    fn gather(&mut self, node: NodeId, axis: usize, at: &[Index]) -> Result<Expr, CodegenError> {
        let body = self.body;
        let [source, indices] = [0, 1].map(|i| body.node(node).operands[i]);
        let rank = body.ty(indices).shape.rank();
        let data = self.atoms.fresh(&body.ty(source).shape.dims()[axis], AtomDef::Data);
        self.read_index(node, data, &at[axis..axis + rank])?;
        let mut src = at[..axis].to_vec();
        src.push(self.atoms.index(data));
        src.extend_from_slice(&at[axis + rank..]);
        self.value(source, &src)
    }

    /// Reads the index of a gather at `at`, clamped to the axis, as the value of the atom `data`.
    pub fn read_index(&mut self, gather: NodeId, data: AtomId, at: &[Index]) -> Result<(), CodegenError> {
        let node = self.body.node(gather);
        let Op::Gather { axis } = node.op else {
            return Err(CodegenError::Node(self.body.node_text(gather)));
        };
        let extent = self.body.ty(node.operands[0]).shape.dims()[axis].clone();
        let picked = self.value(node.operands[1], at)?;
        let last = self.dim(&(&extent - &Dim::one()));
        let name = self.fresh_name("g");
        self.line_at(picked.depth, format!("uint {name} = min({}, {last});", picked.text));
        self.names.insert(data, Expr { text: name, depth: picked.depth });
        Ok(())
    }

    pub fn within(&mut self, index: &Index, start: &Dim, len: &Dim) -> Result<Expr, CodegenError> {
        let at = self.position(index, start)?;
        let len = self.dim(len);
        Ok(Expr { text: format!("{} < {len}", at.text), depth: at.depth })
    }

    /// `index - start` as the name of a variable.
    pub(super) fn position(&mut self, index: &Index, start: &Dim) -> Result<Expr, CodegenError> {
        let key = (index.clone(), start.clone());
        if let Some(e) = self.positions.get(&key) {
            return Ok(e.clone());
        }
        let e = self.index(index)?;
        let text = if start.is(0) { e.text } else { format!("{} - {}", e.text, self.dim(start)) };
        // Used up to three times: in the guard of the coordinate, as the coordinate, and in the pad's test.
        let at = if text.contains(' ') {
            let name = self.fresh_name("p");
            self.line_at(e.depth, format!("uint {name} = {text};"));
            Expr { text: name, depth: e.depth }
        } else {
            Expr { text, depth: e.depth }
        };
        self.positions.insert(key, at.clone());
        Ok(at)
    }

    fn concat(&mut self, value: Value, at: &[Index], axis: usize) -> Result<Expr, CodegenError> {
        let body = self.body;
        let node = body.node(value.node);
        let reads = operand_indices(body, value.node, at, &mut self.atoms).unwrap_or_default();
        if let Some(part) = selected_part(body, node, at) {
            return self.value(node.operands[part], &reads[part]);
        }
        let mut parts = vec![];
        for (operand, read) in node.operands.iter().zip(&reads) {
            parts.push(self.value(*operand, read)?);
        }
        let last = parts.pop().ok_or_else(|| CodegenError::Node(body.node_text(value.node)))?;
        let (mut end, mut text, mut depth) = (Dim::zero(), String::new(), last.depth);
        let i = self.index(&at[axis])?;
        for (part, operand) in parts.iter().zip(&node.operands) {
            end = &end + &body.ty(*operand).shape.dims()[axis];
            let limit = self.dim(&end);
            text += &format!("({}) < {limit} ? {} : ", i.text, part.text);
            depth = depth.max(part.depth).max(i.depth);
        }
        let dtype = body.ty(value).dtype;
        let what = body.node_text(value.node);
        let ty = Glsl::of(dtype, self.caps).ok_or(CodegenError::Dtype { what, dtype })?;
        Ok(self.define(ty, text + &last.text, depth, value.node))
    }

    fn anchor(&mut self, anchor: Anchor, value: Value, at: &[Index]) -> Result<Expr, CodegenError> {
        match anchor {
            Anchor::Var(e) => Ok(e),
            Anchor::Tile { array, row, base, depth, call } => {
                let column = self.index(at.last().unwrap_or(&Index::default()))?;
                let depth = depth.max(column.depth);
                let at = format!("{row} + ({}) - {base}", column.text);
                let text = if call { format!("{array}({at})") } else { format!("{array}[{at}]") };
                self.rounded(value, text, depth)
            }
            Anchor::Result { text, depth } => self.rounded(value, text, depth),
            Anchor::Rows { array } => {
                let row = self.atoms.flatten(at, &self.body.ty(value).shape);
                let row = self.index(&row)?;
                Ok(Expr { text: format!("{array}[{}]", row.text), depth: row.depth })
            }
            Anchor::Run(place) => {
                let linear = self.atoms.flatten(at, &self.body.ty(value).shape);
                let Place { array, all, side_by_side, columns, depth } = *place;
                let at = self.atoms.unflatten(&linear, &all);
                let (row, run) = (self.index(&at[1])?, self.index(&at[2])?);
                let depth = depth.max(row.depth).max(run.depth);
                let mut terms = vec![];
                if !all.dims()[1].is(1) {
                    terms.push(if side_by_side == 1 {
                        row.text
                    } else {
                        format!("{} * {side_by_side}u", row.text)
                    });
                }
                if side_by_side != 1 {
                    terms.push(format!("{} - column0 / {}u", run.text, columns));
                }
                let at = if terms.is_empty() { "0u".to_string() } else { terms.join(" + ") };
                Ok(Expr { text: format!("{array}[{at}]"), depth })
            }
            Anchor::Group { array, row } => {
                let j = self.names.get(&row).cloned();
                let j = j.ok_or_else(|| CodegenError::Node(self.body.node_text(value.node)))?;
                Ok(Expr { text: format!("{array}[{}]", j.text), depth: j.depth })
            }
        }
    }

    /// An accumulator rounded to the type of `value`.
    fn rounded(&mut self, value: Value, text: String, depth: usize) -> Result<Expr, CodegenError> {
        let dtype = self.body.ty(value).dtype;
        let held = scalar::held(dtype, text.clone(), self.uses_at(depth));
        if held == text {
            return Ok(Expr { text, depth });
        }
        let what = self.body.node_text(value.node);
        let ty = Glsl::of(dtype, self.caps).ok_or(CodegenError::Dtype { what, dtype })?;
        Ok(self.define(ty, held, depth, value.node))
    }
}

/// Parenthesizes negative literals, so that `a - -1.0` and `--1.0` cannot arise.
fn operand_text(text: String) -> String {
    if text.starts_with('-') { format!("({text})") } else { text }
}
