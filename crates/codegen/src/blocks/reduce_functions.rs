//! The GLSL functions of reductions over a workgroup or a subgroup, and the accumulators that they reduce.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value as Hole, context};
use tallow_ir::{DType, NodeId, ReduceKind};

use super::row_loop::{ReduceScope, RowLoop};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::library::{self as lib, Uses};
use crate::template::render;

/// The reduction functions that a kernel calls.
#[derive(Default)]
pub(crate) struct Used {
    functions: BTreeMap<String, Reduction>,
    args: BTreeMap<String, (ReduceKind, Glsl)>,
    /// Index reductions over a subgroup.
    subgroup_args: BTreeMap<String, (ReduceKind, Glsl)>,
    /// Reductions over a subgroup only, by the name of the workgroup function.
    parts: BTreeMap<String, Reduction>,
    types: BTreeSet<Glsl>,
    /// Adjacent columns that a workgroup reduces in parallel; 0 or 1 if the whole workgroup reduces one row.
    columns: u32,
    /// The types of the partials through which the workgroups of a split row combine.
    pub partials: Vec<Glsl>,
}

/// A value reduction.
struct Reduction {
    kind: ReduceKind,
    ty: Glsl,
    dtype: DType,
    /// The GLSL built-in that reduces over a subgroup; empty if there is none.
    subgroup: &'static str,
    /// Whether the built-in needs a wrapper that handles NaN.
    nan: bool,
}

impl Reduction {
    /// The name of the subgroup function.
    fn part(&self) -> String {
        if self.nan { format!("subgroup_{}", word(self.kind)) } else { self.subgroup.to_string() }
    }

    /// The template arguments. `by_subgroup` says whether the definition calls the built-in, and `combines` whether it
    /// combines elements one by one.
    fn hole(&self, name: &str, (by_subgroup, combines): (bool, bool), uses: &mut Uses) -> Hole {
        let Reduction { kind, ty, dtype, subgroup, nan } = *self;
        uses.subgroups |= by_subgroup;
        if by_subgroup && nan {
            uses.add(lib::IS_NAN);
        }
        let (scratch, to, from) = scratch(ty);
        let combine = if combines { combine(kind, ty, "x", "y", uses) } else { String::new() };
        context! {
            name, type => uses.ty(ty), subgroup, nan, part => self.part(), scratch, to, from,
            identity => identity(kind, ty, dtype), combine,
        }
    }
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

/// The GLSL built-in that reduces over a subgroup.
fn subgroup_op(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Sum => "subgroupAdd",
        ReduceKind::Prod => "subgroupMul",
        ReduceKind::Max | ReduceKind::ArgMax => "subgroupMax",
        ReduceKind::Min | ReduceKind::ArgMin => "subgroupMin",
    }
}

/// The identity element as a literal.
pub(super) fn identity(kind: ReduceKind, ty: Glsl, dtype: DType) -> String {
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
pub(super) fn combine(kind: ReduceKind, ty: Glsl, x: &str, y: &str, uses: &mut Uses) -> String {
    match (kind, ty) {
        (ReduceKind::Sum, _) => format!("{x} + {y}"),
        (ReduceKind::Prod, _) => format!("{x} * {y}"),
        (ReduceKind::Max | ReduceKind::ArgMax, Glsl::Float | Glsl::Double) => {
            uses.call(lib::MAX_OF, format_args!("{x}, {y}"))
        }
        (ReduceKind::Min | ReduceKind::ArgMin, Glsl::Float | Glsl::Double) => {
            uses.call(lib::MIN_OF, format_args!("{x}, {y}"))
        }
        // Not max() and min(): spirv-opt's constant propagation cannot evaluate the extended instruction. It replaces
        // `acc = max(acc, c)` in a loop by the initial value of acc (shaderc 0.10).
        (ReduceKind::Max | ReduceKind::ArgMax, _) => format!("{x} > {y} ? {x} : {y}"),
        (ReduceKind::Min | ReduceKind::ArgMin, _) => format!("{x} < {y} ? {x} : {y}"),
    }
}

impl Used {
    /// For workgroups that reduce this many adjacent columns (0: one row).
    pub fn of_columns(columns: u32) -> Self {
        Used { columns, ..Used::default() }
    }

    /// The name of the workgroup function of a value reduction. Marks it as used.
    pub fn value(&mut self, kind: ReduceKind, ty: Glsl, dtype: DType) -> String {
        let (name, reduction) = self.function(kind, ty, dtype);
        self.types.insert(ty);
        self.functions.insert(name.clone(), reduction);
        name
    }

    /// The name of the subgroup function of a value reduction. Marks it as used.
    fn part(&mut self, kind: ReduceKind, ty: Glsl, dtype: DType) -> String {
        let (name, reduction) = self.function(kind, ty, dtype);
        let part = reduction.part();
        self.parts.insert(name, reduction);
        part
    }

    /// The name of the workgroup function of a value reduction, and what defines it.
    fn function(&self, kind: ReduceKind, ty: Glsl, dtype: DType) -> (String, Reduction) {
        let subgroup = match kind {
            // Adjacent invocations hold different columns.
            _ if self.columns > 1 => "",
            // 64-bit subgroup operations need a separate device feature.
            _ if ty.bytes() > 4 => "",
            kind => subgroup_op(kind),
        };
        let nan = ty == Glsl::Float && matches!(kind, ReduceKind::Max | ReduceKind::Min);
        let name = format!("{}_{}_{}", self.prefix(), word(kind), ty.word());
        (name, Reduction { kind, ty, dtype, subgroup, nan })
    }

    /// The name of the workgroup function of an index reduction. Marks it as used.
    pub fn arg(&mut self, kind: ReduceKind, ty: Glsl) -> String {
        let name = format!("{}_arg_{}_{}", self.prefix(), word(kind), ty.word());
        self.types.insert(ty);
        self.args.insert(name.clone(), (kind, ty));
        name
    }

    /// The name of the subgroup function of an index reduction. Marks it as used.
    fn subgroup_arg(&mut self, kind: ReduceKind, ty: Glsl) -> String {
        let name = format!("subgroup_arg_{}_{}", word(kind), ty.word());
        self.subgroup_args.insert(name.clone(), (kind, ty));
        name
    }

    fn prefix(&self) -> &'static str {
        if self.columns > 1 { "columns" } else { "workgroup" }
    }

    /// Bytes of shared memory that the functions use.
    pub fn shared_bytes(&self, workgroup: u32) -> u32 {
        if self.functions.is_empty() && self.args.is_empty() {
            return 0;
        }
        let arrays = self.scratches().values().sum::<u32>() + if self.args.is_empty() { 0 } else { 4 };
        workgroup * arrays
    }

    /// Shared arrays that are declared, with their bytes per element.
    fn scratches(&self) -> BTreeMap<&'static str, u32> {
        // The float array is always declared.
        self.types.iter().chain([&Glsl::Float]).map(|ty| (scratch(*ty).0, ty.bytes())).collect()
    }

    /// GLSL of all functions used.
    pub fn render(&self, workgroup: u32, e: &mut Emitter<'_>) -> Result<String, CodegenError> {
        let (caps, uses) = (e.caps, e.uses());
        let own = |name: &String| !self.functions.contains_key(name);
        let parts = self.parts.iter().filter(|(name, _)| own(name));
        let parts: Vec<Hole> = parts.map(|(name, part)| part.hole(name, (true, false), uses)).collect();
        let subgroup_args = self.subgroup_args.iter().map(|(name, &(kind, ty))| {
            let nan = ty == Glsl::Float;
            if nan {
                uses.add(lib::IS_NAN);
            }
            context! { name, word => word(kind), type => uses.ty(ty), subgroup => subgroup_op(kind), nan }
        });
        let subgroup_args: Vec<Hole> = subgroup_args.collect();
        let parts = render("reduce_subgroup.glsl", context! { reductions => parts, args => subgroup_args })?;
        if self.functions.is_empty() && self.args.is_empty() {
            return Ok(parts);
        }
        let kinds: Vec<&str> = if self.args.is_empty() { vec![] } else { vec!["arg"] };
        // Whether one subgroup can reduce the partials of all subgroups; requires a fixed subgroup size.
        let few = caps.has_fixed_subgroup_size()
            && workgroup / caps.scheduled_subgroup_size() <= caps.scheduled_subgroup_size();
        let functions = self.functions.iter().map(|(name, reduction)| {
            let by_subgroup = caps.subgroup_arithmetic && !reduction.subgroup.is_empty();
            reduction.hole(name, (by_subgroup, !(by_subgroup && few)), uses)
        });
        let functions: Vec<Hole> = functions.collect();
        let args = self.args.iter().map(|(name, &(kind, ty))| {
            let (scratch, to, from) = scratch(ty);
            context! {
                name, word => word(kind), type => uses.ty(ty), scratch, to, from,
                better => better(kind, ty, "y", "x", uses), worse => better(kind, ty, "x", "y", uses),
            }
        });
        let args: Vec<Hole> = args.collect();
        let holes = context! {
            few => few,
            slots => workgroup, half => workgroup / 2, subgroup => caps.subgroup_arithmetic, kinds => kinds,
            columns => self.columns.max(1),
            while => if self.columns > 1 { format!("s >= {}u", self.columns) } else { "s > 0u".to_string() },
            own => match self.columns {
                0 | 1 => "0".to_string(),
                columns => format!("gl_LocalInvocationIndex % {columns}u"),
            },
            types => self.scratches().into_keys().collect::<Vec<&str>>(), reductions => functions, args => args,
        };
        Ok(parts + &render("reduce.glsl", holes)?)
    }
}

/// The shared array of a type and the conversions to and from its elements; `int` and `uint` share one array.
fn scratch(ty: Glsl) -> (&'static str, &'static str, &'static str) {
    match ty {
        Glsl::Float => ("scratch_float", "", ""),
        Glsl::Uint => ("scratch_uint", "", ""),
        Glsl::Int => ("scratch_uint", "uint", "int"),
        Glsl::Long => ("scratch_long", "", ""),
        Glsl::Double => ("scratch_double", "", ""),
    }
}

/// A GLSL test of whether `a` wins over `b`. A NaN wins over any number, and the first NaN stays.
pub(super) fn better(kind: ReduceKind, ty: Glsl, a: &str, b: &str, uses: &mut Uses) -> String {
    let sign = if kind == ReduceKind::ArgMin { "<" } else { ">" };
    match ty {
        Glsl::Float | Glsl::Double => {
            let [a_is_nan, b_is_nan] = [a, b].map(|x| uses.call(lib::IS_NAN, x));
            format!("({a} {sign} {b} || ({a_is_nan} && !{b_is_nan}))")
        }
        Glsl::Uint | Glsl::Int | Glsl::Long => format!("{a} {sign} {b}"),
    }
}

/// The accumulator of one reduction. Index reductions also have a variable for the position.
pub(crate) struct Accumulator {
    pub id: NodeId,
    pub kind: ReduceKind,
    pub ty: Glsl,
    pub dtype: DType,
    pub name: String,
}

impl Accumulator {
    pub fn identity(&self) -> String {
        identity(self.kind, self.ty, self.dtype)
    }

    /// The accumulator of the current column.
    pub fn value(&self, row_loop: &RowLoop) -> String {
        row_loop.column(&self.name)
    }

    /// The position of the current column.
    pub fn position(&self, row_loop: &RowLoop) -> String {
        row_loop.column(&format!("{}_at", self.name))
    }

    /// The reduction across invocations, as an expression. Marks its function as used.
    pub fn reduced(
        &self,
        e: &mut Emitter<'_>,
        used: &mut Used,
        row_loop: &RowLoop,
    ) -> Result<String, CodegenError> {
        let (value, at) = (self.value(row_loop), self.position(row_loop));
        Ok(match (row_loop.scope, self.kind.is_arg()) {
            (ReduceScope::Invocation, true) => at,
            (ReduceScope::Invocation, false) => value,
            (ReduceScope::Subgroup, true) => {
                e.uses().subgroups = true;
                format!("{}({value}, {at})", used.subgroup_arg(self.kind, self.ty))
            }
            (ReduceScope::Subgroup, false) => {
                e.uses().subgroups = true;
                format!("{}({value})", used.part(self.kind, self.ty, self.dtype))
            }
            (ReduceScope::Workgroup(_) | ReduceScope::Slices(_), true) => {
                format!("{}({value}, {at})", used.arg(self.kind, self.ty))
            }
            (ReduceScope::Workgroup(_) | ReduceScope::Slices(_), false) => {
                format!("{}({value})", used.value(self.kind, self.ty, self.dtype))
            }
        })
    }
}
