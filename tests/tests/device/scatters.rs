//! Scatters of many elements into few targets, which workgroups combine in copies of the target first.

use tallow_ir::{
    DType, Dim, ElementwiseOp as E, Fusion, Graph, GraphError, Op, ScatterKind, Symbol, Value, cost, passes,
};

use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on};
use crate::harness::device;

/// Elements of `[rows, columns]`, each combined with that of `[targets, columns]` which the index of its row selects.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: ScatterKind,
    pub dtype: DType,
    pub rows: Dim,
    pub columns: i64,
    pub targets: Dim,
    /// Rows that are adjacent and have one index; 0 for random indices.
    pub run: u32,
}

/// The index of each row, some of them beyond any target: in order, or of two random digits.
fn indices(g: &mut Graph, case: &Case) -> Result<Value, GraphError> {
    let rows = [case.rows.clone()];
    if case.run > 0 {
        let count = g.add(Op::Iota { len: case.rows.clone(), dtype: DType::U32 }, &[])?;
        let run = g.full_like(count, f64::from(case.run))?;
        return g.elementwise(E::Div, &[count, run]);
    }
    let high = g.input("high", DType::U32, rows.clone())?;
    let low = g.input("low", DType::U32, rows)?;
    let base = g.full_like(high, 17.0)?;
    let high = g.elementwise(E::Mul, &[high, base])?;
    g.elementwise(E::Add, &[high, low])
}

/// The graph of a case.
pub fn graph(case: &Case) -> Result<Graph, GraphError> {
    let mut g = Graph::new("scatter");
    let columns = Dim::from(case.columns);
    let all = &case.rows * &columns;
    let target = g.input("target", case.dtype, [&case.targets * &columns])?;
    let source = g.input("source", case.dtype, [all.clone()])?;
    let rows = indices(&mut g, case)?;
    let both = [case.rows.clone(), columns.clone()];
    let rows = g.reshape(rows, [case.rows.clone(), 1.into()])?;
    let rows = g.broadcast(rows, both.clone())?;
    let width = g.full_like(rows, case.columns as f64)?;
    let rows = g.elementwise(E::Mul, &[rows, width])?;
    let column = g.add(Op::Iota { len: columns.clone(), dtype: DType::U32 }, &[])?;
    let column = g.reshape(column, [1.into(), columns])?;
    let column = g.broadcast(column, both)?;
    let at = g.elementwise(E::Add, &[rows, column])?;
    let at = g.reshape(at, [all])?;
    let y = g.add(Op::Scatter(case.kind), &[target, at, source])?;
    g.output("y", y)?;
    Ok(g)
}

/// Whether the device combines in copies.
fn has_copies(graph: &Graph) -> bool {
    let device = device().unwrap();
    let tallow::Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let fused = passes::run(graph, vulkan.caps(), &mut |_, _| {}).unwrap();
    let copies = |f: &Fusion| tallow_codegen::schedules(f, vulkan.caps()).unwrap()[0].tile.n > 0;
    fused.graph().nodes().any(|(_, n)| matches!(&n.op, Op::Fusion(f) if copies(f)))
}

fn check_all(cases: &[Case], copies: bool) {
    if device().is_none() {
        return;
    }
    for (seed, case) in cases.iter().enumerate() {
        let graph = graph(case).unwrap();
        assert_eq!(has_copies(&graph), copies, "{case:?}");
        if let Some(why) = check(&graph, seed as u64) {
            panic!("{case:?}: {why}");
        }
    }
}

/// Rows, columns and targets of known extents.
pub fn case(kind: ScatterKind, dtype: DType, [rows, columns, targets]: [i64; 3], run: u32) -> Case {
    Case { kind, dtype, rows: rows.into(), columns, targets: targets.into(), run }
}

#[test]
fn few_targets_match_the_interpreter() {
    use DType::{BF16, F16, F32, I16, I32, U8, U32};
    use ScatterKind::{Add, Max};
    let mut cases = vec![];
    for dtype in [F32, F16, BF16, U8, I16, I32, U32] {
        cases.push(case(Add, dtype, [5003, 1, 17], 0));
        cases.push(case(Add, dtype, [1001, 3, 13], 77));
    }
    for dtype in [U8, I16, I32, U32] {
        cases.push(case(Max, dtype, [5003, 1, 17], 0));
        cases.push(case(Max, dtype, [1001, 3, 13], 77));
    }
    // One target, one element, in and around a workgroup and its step.
    for rows in [33, 1023, 1024, 1025, 4097] {
        cases.push(case(Add, F32, [rows, 1, 1], 0));
        cases.push(case(Add, F32, [rows, 1, 1], rows as u32));
    }
    // Sorted, with runs longer and shorter than a workgroup, and of its length.
    for run in [1, 32, 500, 1024, 30_000] {
        cases.push(case(Add, F32, [60_000, 1, 250], run));
        cases.push(case(Max, I32, [60_000, 1, 250], run));
    }
    cases.push(case(Add, F32, [9000, 7, 100], 41));
    check_all(&cases, true);
}

/// Targets that are divided into ranges: one element more than a copy holds.
#[test]
fn ranges_match_the_interpreter() {
    let Some(device) = device() else { return };
    let tallow::Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let capacity = i64::from(vulkan.caps().shared_memory_bytes / 4);
    // The cost of two ranges, with a whole workgroup for each core and range.
    let rows = i64::from(cost::workgroups_of_waves(vulkan.caps(), 4)) * capacity / 32;
    let dims = [rows, 32, capacity / 32 + 1];
    check_all(
        &[case(ScatterKind::Add, DType::F32, dims, 0), case(ScatterKind::Max, DType::U32, dims, 5000)],
        true,
    );
}

#[test]
fn symbolic_extents_match_the_interpreter() {
    let rows = || Dim::from(Symbol::new("rows", 4000));
    let targets = || Dim::from(Symbol::new("targets", 19));
    let add = |rows, columns, targets, run| Case {
        kind: ScatterKind::Add,
        dtype: DType::F32,
        rows,
        columns,
        targets,
        run,
    };
    let cases = [
        add(rows(), 1, 19.into(), 0),
        add(rows(), 3, 19.into(), 100),
        add(rows(), 3, targets(), 0),
        add(3000.into(), 1, targets(), 64),
        add(3000.into(), 2, targets(), 0),
    ];
    check_all(&cases, true);
    // No elements, and no targets.
    let Some(device) = device() else { return };
    for case in &cases {
        let graph = graph(case).unwrap();
        let none = graph.symbols().map(|s| (s.name().to_string(), 0)).collect();
        check_on(&device, &graph, &with_symbols(&graph, 1, none)).unwrap();
    }
}

/// More targets than copies are for. Where neighbours have one position, a subgroup updates it once.
#[test]
fn repeated_positions_match_the_interpreter() {
    let Some(device) = device() else { return };
    let tallow::Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let targets = i64::from(vulkan.caps().shared_memory_bytes / 4) * 4 + 1;
    let of = |kind, dtype, run| case(kind, dtype, [targets * 32, 1, targets], run);
    let (add, max) = (ScatterKind::Add, ScatterKind::Max);
    check_all(&[of(add, DType::F32, 37), of(max, DType::I32, 3), of(add, DType::F32, 0)], false);
}

/// As many targets as elements, or nearly, and elements of 64 bits.
#[test]
fn many_targets_match_the_interpreter() {
    let cases = [
        case(ScatterKind::Add, DType::F32, [3001, 1, 289], 0),
        case(ScatterKind::Add, DType::I32, [500, 5, 250], 2),
        case(ScatterKind::Max, DType::U32, [500, 5, 500], 1),
    ];
    check_all(&cases, false);
}
