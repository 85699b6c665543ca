//! Rows written where an index says: by each kind of kernel that computes rows, at indices that an operand holds or that
//! the kernel computes, some of them beyond the state.

use tallow_ir::{
    Attention, DType, ElementwiseOp as E, Format, FusionKind, Graph, GraphError, Op, ReduceKind, SortSpan,
    Value, caps,
};
use tallow_tests::random_inputs;

use crate::differential::{check, check_on};
use crate::harness::{device, device_with_range};

/// What computes the rows.
#[derive(Clone, Copy, Debug)]
enum Source {
    Map,
    Norm,
    Products(Format),
    ProductsOfFloats,
    Attention,
}

/// Rows of so many elements, written along the first axis of `[rows, columns]`, or along the second one of
/// `[heads, rows, columns]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    source: Source,
    heads: usize,
    rows: usize,
    columns: usize,
    dtype: DType,
    /// Whether the kernel computes the index.
    counted: bool,
}

/// Numbers that differ: an order that a kernel before finds, or every second one from a number on.
fn indices(g: &mut Graph, case: &Case) -> Result<Value, GraphError> {
    let rows = [case.rows];
    if !case.counted {
        let keys = g.input("keys", DType::U32, rows)?;
        return g.add(Op::ArgSort { axis: 0, descending: true, span: SortSpan::All }, &[keys]);
    }
    let count = g.add(Op::Iota { len: case.rows.into(), dtype: DType::U32 }, &[])?;
    let twice = g.elementwise(E::Add, &[count, count])?;
    let start = g.input("start", DType::U32, [1usize])?;
    let start = g.broadcast(start, rows)?;
    g.elementwise(E::Add, &[twice, start])
}

/// `[heads, rows, columns]`, or of one head `[rows, columns]`.
fn computed(g: &mut Graph, case: &Case) -> Result<Value, GraphError> {
    let shape = match case.heads {
        1 => vec![case.rows, case.columns],
        heads => vec![heads, case.rows, case.columns],
    };
    let shape: tallow_ir::Shape = shape.into_iter().map(tallow_ir::Dim::from).collect();
    let last = shape.rank() - 1;
    match case.source {
        Source::Map => {
            let x = g.input("x", DType::F32, shape)?;
            g.elementwise(E::Neg, &[x])
        }
        Source::Norm => {
            let x = g.input("x", DType::F32, shape.clone())?;
            let most = g.reduce_keepdim(ReduceKind::Max, x, &[last])?;
            let most = g.broadcast(most, shape)?;
            g.elementwise(E::Sub, &[x, most])
        }
        Source::Products(format) => {
            let x = g.input("x", DType::F32, [case.rows, 256])?;
            let w = g.weight("w", DType::Block(format), [case.columns, 256])?;
            let w = g.add(Op::Dequantize(DType::F32), &[w])?;
            let w = g.permute(w, &[1, 0])?;
            g.add(Op::Matmul, &[x, w])
        }
        Source::ProductsOfFloats => {
            let x = g.input("x", DType::F16, [case.rows, 64])?;
            let w = g.input("w", DType::F16, [64, case.columns])?;
            g.add(Op::Matmul, &[x, w])
        }
        Source::Attention => {
            let x = g.input("x", DType::F32, [case.heads, case.rows, case.columns])?;
            g.add(Op::Attention(Attention::new(0.125)), &[x, x, x])
        }
    }
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("index_rows");
        let y = computed(&mut g, self)?;
        let y = match self.dtype {
            DType::Block(format) => {
                let wide = g.add(Op::Cast(DType::F32), &[y])?;
                g.add(Op::Quantize(format), &[wide])?
            }
            same if g.ty(y).dtype == same => y,
            other => g.add(Op::Cast(other), &[y])?,
        };
        let axis = g.ty(y).shape.rank() - 2;
        let mut whole = g.ty(y).shape.dims().to_vec();
        whole[axis] = (self.rows - self.rows / 3).into();
        let offsets = vec![tallow_ir::Dim::zero(); whole.len()];
        let state = g.state("state", self.dtype, tallow_ir::Shape::new(whole))?;
        let indices = indices(&mut g, self)?;
        let next = g.add(Op::StateUpdate { offsets, rows: Some(axis) }, &[state, y, indices])?;
        g.keep(next)?;
        Ok(g)
    }
}

fn cases() -> Vec<Case> {
    let sources = [
        (Source::Map, 1, 5, [64, 33]),
        (Source::Map, 3, 4, [32, 7]),
        (Source::Norm, 1, 6, [64, 31]),
        (Source::Norm, 2, 3, [160, 3]),
        (Source::Products(Format::Q4_0), 1, 1, [64, 33]),
        (Source::Products(Format::Q6_K), 1, 3, [96, 5]),
        (Source::Products(Format::Q8_0), 1, 40, [64, 33]),
        (Source::ProductsOfFloats, 1, 2, [64, 17]),
        (Source::ProductsOfFloats, 1, 70, [64, 17]),
        (Source::Attention, 2, 5, [32, 8]),
    ];
    let mut all = vec![];
    for (i, (source, heads, rows, columns)) in sources.into_iter().enumerate() {
        let blocks = DType::Block(Op::QUANTIZED[i % Op::QUANTIZED.len()]);
        let floats = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3];
        for (j, dtype) in floats.into_iter().chain([blocks]).enumerate() {
            let columns = if j == 4 { columns[0] } else { columns[(i + j) % 2] };
            all.push(Case { source, heads, rows, columns, dtype, counted: (i + j) % 2 == 0 });
        }
    }
    all
}

fn checked(failure: impl Fn(&Graph, u64) -> Option<String>) {
    let mut found = vec![];
    for (i, case) in cases().iter().enumerate() {
        let graph = case.graph().unwrap();
        let why = failure(&graph, 40 + i as u64);
        found.extend(why.map(|why| format!("{case:?}\n{graph}\n{why}")));
    }
    assert!(found.is_empty(), "{} fail\n{}", found.len(), found.join("\n\n"));
}

#[test]
fn rows_of_all_kernels() {
    if device().is_some() {
        checked(check);
    }
}

/// States that are bound window by window.
#[test]
fn rows_in_windows() {
    let Some(device) = device_with_range(4096) else { return };
    checked(|graph, seed| check_on(&device, graph, &random_inputs(graph, seed)).err());
}

/// The kernel that computes rows writes them: no copy of them is in memory. Attention is rounded to blocks by a kernel of
/// its own, and so are products of many rows.
#[test]
fn rows_are_written_where_they_are_computed() {
    for case in cases() {
        let graph = case.graph().unwrap();
        let fused = tallow_ir::passes::run(&graph, &caps::h200(), &mut |_, _| {}).unwrap();
        let kinds: Vec<FusionKind> = (fused.graph().nodes())
            .filter_map(|(_, n)| if let Op::Fusion(f) = &n.op { Some(f.kind) } else { None })
            .filter(|kind| *kind != FusionKind::Sort)
            .collect();
        let blocks = matches!(case.dtype, DType::Block(_));
        let few = case.rows <= 8 && matches!(case.source, Source::Products(_) | Source::ProductsOfFloats);
        let map = matches!(case.source, Source::Map);
        let expected = if blocks && !few && !map { 2 } else { 1 };
        assert!(kinds.len() <= expected, "{case:?}: {kinds:?}\n{}", fused.graph());
    }
}

/// Tiles that cooperative matrices narrow to f16 are stored as words, which no device of the tests does.
#[test]
fn words_of_cooperative_matrices_are_guarded() {
    let case = Case {
        source: Source::ProductsOfFloats,
        heads: 1,
        rows: 64,
        columns: 64,
        dtype: DType::F16,
        counted: true,
    };
    let module = tallow_codegen::compile(&case.graph().unwrap(), &caps::h200()).unwrap();
    let stores = module.kernels.iter().flat_map(|k| k.glsl.lines()).filter(|l| l.contains(" put0("));
    let stores: Vec<&str> = stores.filter(|l| !l.starts_with("void")).collect();
    assert!(!stores.is_empty() && stores.iter().all(|l| l.trim().starts_with("if (")), "{stores:?}");
}
