//! Elementwise kernels with transposed operands, read through tiles: any axes and types, extents that tiles do not
//! divide, other operands beside them, several outputs, state updates, and lengths that only a run knows.

use tallow::Device;
use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, Shape, Symbol};
use tallow_tests::random_inputs::with_symbols;

use crate::differential::{check, check_on, computed};
use crate::harness::device;

fn tiled(device: &Device, graph: &Graph) -> usize {
    let module = tallow_codegen::compile(graph, device.caps().unwrap()).unwrap();
    module.kernels.iter().filter(|kernel| kernel.schedule.to_string().starts_with("map 32x32")).count()
}

fn agrees(graph: &Graph, what: &str) {
    if let Some(why) = check(graph, 11) {
        panic!("{what}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn any_axes() {
    let Some(device) = device() else { return };
    let cases: [(&[usize], &[usize], bool); 8] = [
        (&[321, 330], &[1, 0], true),
        (&[16, 8000], &[1, 0], true),
        (&[15, 8000], &[1, 0], false),
        (&[40, 40], &[1, 0], false),
        (&[3, 67, 28, 28], &[0, 2, 3, 1], true),
        (&[5, 33, 40, 41], &[3, 1, 2, 0], false),
        (&[33, 5, 20, 41], &[3, 1, 2, 0], true),
        (&[2, 3, 150, 170], &[1, 0, 3, 2], true),
    ];
    for (shape, axes, is_tiled) in cases {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("axes");
            let x = g.input("x", DType::F32, Shape::from_iter(shape.iter().map(|n| Dim::from(*n))))?;
            let y = g.permute(x, axes)?;
            let y = g.elementwise(E::Abs, &[y])?;
            g.output("y", y)?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(tiled(&device, &graph), usize::from(is_tiled), "{shape:?} {axes:?}");
        agrees(&graph, &format!("{shape:?} {axes:?}"));
    }
}

/// `x + y^T` and what else reads `x` as it is, of every type.
#[test]
fn beside_other_operands() {
    let Some(device) = device() else { return };
    for dtype in computed(&device) {
        let build = || -> Result<Graph, GraphError> {
            let mut g = Graph::new("sum");
            let (x, y) = (g.input("x", dtype, [500, 210])?, g.input("y", dtype, [210, 500])?);
            let (z, turned) = (g.input("z", dtype, [210])?, g.permute(y, &[1, 0])?);
            let sum = g.elementwise(E::Maximum, &[x, turned])?;
            let z = g.broadcast(z, [500, 210])?;
            let least = g.elementwise(E::Minimum, &[sum, z])?;
            g.output("sum", sum)?;
            g.output("least", least)?;
            Ok(g)
        };
        let graph = build().unwrap();
        assert_eq!(tiled(&device, &graph), 1, "{dtype}");
        agrees(&graph, &dtype.to_string());
    }
}

/// A matrix beside its own transpose is read in two ways: no tile holds both.
#[test]
fn read_in_two_ways() {
    let Some(device) = device() else { return };
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("symmetric");
        let x = g.input("x", DType::F32, [400, 400])?;
        let turned = g.permute(x, &[1, 0])?;
        let sum = g.elementwise(E::Add, &[x, turned])?;
        g.output("sum", sum)?;
        Ok(g)
    };
    let graph = build().unwrap();
    assert_eq!(tiled(&device, &graph), 0);
    agrees(&graph, "x + x^T");
}

/// Slices, padding and an update of a state around a transpose.
#[test]
fn views_and_states() {
    let Some(device) = device() else { return };
    for flips in [false, true] {
        let graph = views(flips).unwrap();
        assert!(tiled(&device, &graph) > 0, "{flips}");
        agrees(&graph, "views");
    }
}

fn views(flips: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("views");
    let x = g.input("x", DType::F16, [300, 500])?;
    let slice = g.add(Op::Slice { axis: 1, start: 3.into(), len: 490.into() }, &[x])?;
    let turned = g.permute(slice, &[1, 0])?;
    let turned = if flips { g.add(Op::Flip { axis: 1 }, &[turned])? } else { turned };
    let y = g.elementwise(E::Neg, &[turned])?;
    g.output("y", y)?;
    let state = g.state("s", DType::F16, [500, 400])?;
    let z = g.elementwise(E::Abs, &[turned])?;
    let version = g.add(Op::StateUpdate { offsets: vec![7.into(), 9.into()], rows: None }, &[state, z])?;
    g.keep(version)?;
    Ok(g)
}

#[test]
fn outer_lengths_of_a_run() {
    let Some(device) = device() else { return };
    let n = Dim::from(&Symbol::new("n", 40));
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("symbols");
        let x = g.input("x", DType::F32, [n, 70.into(), 90.into()])?;
        let y = g.permute(x, &[0, 2, 1])?;
        let y = g.elementwise(E::Neg, &[y])?;
        g.output("y", y)?;
        Ok(g)
    };
    let graph = build().unwrap();
    assert_eq!(tiled(&device, &graph), 1);
    for n in [0, 1, 7, 40] {
        let inputs = with_symbols(&graph, n, [("n".into(), n)].into_iter().collect());
        if let Err(why) = check_on(&device, &graph, &inputs) {
            panic!("n = {n}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}

/// More transposed operands than tiles fit into shared memory.
#[test]
fn many_wide_operands() {
    let Some(device) = device() else { return };
    let dtype = if computed(&device).contains(&DType::F64) { DType::F64 } else { DType::F32 };
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("many");
        let mut sum = g.input("x", dtype, [256, 400])?;
        for i in 0..8 {
            let y = g.input(&format!("y{i}"), dtype, [400, 256])?;
            let turned = g.permute(y, &[1, 0])?;
            sum = g.elementwise(E::Maximum, &[sum, turned])?;
        }
        g.output("sum", sum)?;
        Ok(g)
    };
    agrees(&build().unwrap(), "many");
}
