//! Tensors of 2^31 bytes and more: positions and byte offsets beyond what 31 bits hold, in as many windows as the
//! device needs. Where it allocates no more at once (lavapipe: 2^31 bytes), they are as large as it allocates, and larger
//! ones are refused by name. And a long row of which each element looks at all. Part of `make test-full`; each test takes
//! up to 5 GB of memory. Expected elements are computed, for the interpreter would need many times that.

use std::collections::HashMap;

use tallow::{Device, Graph};
use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, Shape, SortSpan, Value};

use crate::kernels::device;

/// An odd length.
const WIDTH: usize = 977;

/// A little more than 2^31 bytes, or as many as fit one allocation.
fn bytes(device: &Device) -> usize {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    (2_200_003 * WIDTH).min(usize::try_from(vulkan.caps().max_allocation_bytes).unwrap())
}

/// Rows of one byte an element.
fn rows(device: &Device) -> usize {
    bytes(device) / WIDTH
}

/// The byte at a position, of a period that divides no power of two.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn run(device: &Device, graph: &Graph, inputs: &[(&str, &[u8])]) -> Vec<Vec<u8>> {
    let executable = device.compile(graph, &HashMap::new(), &HashMap::new()).unwrap();
    executable.run(&[], inputs).unwrap().into_iter().map(|o| o.bytes).collect()
}

/// An op on the large input.
type Build<'a> = &'a dyn Fn(&mut Graph, Value) -> Value;

/// Each output in a graph of its own: all of them read the same input.
fn each(device: &Device, build: &[Build<'_>], data: &[u8]) -> Vec<Vec<u8>> {
    let rows = data.len() / WIDTH;
    let one = |build: &Build<'_>| {
        let mut graph = Graph::new("large");
        let x = graph.input("x", DType::U8, [rows, WIDTH]).unwrap();
        let y = build(&mut graph, x);
        graph.output("y", y).unwrap();
        run(device, &graph, &[("x", data)]).remove(0)
    };
    build.iter().map(one).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// Rows that are summed, of which the largest element is sought, looked up and cut out of 2.1 GB.
#[test]
#[ignore = "takes gigabytes of memory: make test-full"]
fn what_reads_more_than_2_31_bytes() {
    let Some(device) = device() else { return };
    let rows = rows(&device);
    let period: Vec<u8> = (0..251 * 4096).map(byte).collect();
    let mut data = period.repeat(rows * WIDTH / period.len() + 1);
    data.truncate(rows * WIDTH);
    println!("{} bytes", data.len());
    let lookup = move |g: &mut Graph, x: Value| {
        // The last two are clamped.
        let at = g.add(Op::Iota { len: Dim::from(8usize), dtype: DType::U32 }, &[]).unwrap();
        let first = g.full_like(at, (rows - 6) as f64).unwrap();
        let at = g.elementwise(ElementwiseOp::Add, &[at, first]).unwrap();
        g.add(Op::Gather { axis: 0 }, &[x, at]).unwrap()
    };
    let sum = |g: &mut Graph, x: Value| {
        let wide = g.add(Op::Cast(DType::U32), &[x]).unwrap();
        g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[wide]).unwrap()
    };
    let largest = |g: &mut Graph, x: Value| {
        g.add(Op::Reduce { kind: ReduceKind::ArgMax, axes: vec![1] }, &[x]).unwrap()
    };
    let end = move |g: &mut Graph, x: Value| {
        let start = Dim::from(rows - 5);
        let part = g.add(Op::Slice { axis: 0, start, len: Dim::from(5usize) }, &[x]).unwrap();
        let flipped = g.add(Op::Flip { axis: 1 }, &[part]).unwrap();
        g.elementwise(ElementwiseOp::BitNot, &[flipped]).unwrap()
    };
    let results = each(&device, &[&sum, &largest, &lookup, &end], &data);
    let (sums, places) = (words(&results[0]), words(&results[1]));
    assert_eq!((sums.len(), places.len()), (rows, rows));
    for row in (0..rows).step_by(1009).chain([rows - 2, rows - 1]) {
        let here = &data[row * WIDTH..][..WIDTH];
        assert_eq!(sums[row], here.iter().map(|b| u32::from(*b)).sum::<u32>(), "row {row}");
        let most = here.iter().copied().max().unwrap();
        assert_eq!(places[row] as usize, here.iter().position(|b| *b == most).unwrap(), "row {row}");
    }
    let last = &data[(rows - 1) * WIDTH..];
    assert_eq!(results[2], [&data[(rows - 6) * WIDTH..], last, last].concat(), "looked up");
    let cut: Vec<u8> = data[(rows - 5) * WIDTH..]
        .as_chunks::<WIDTH>()
        .0
        .iter()
        .flat_map(|row| row.iter().rev().map(|b| !b))
        .collect();
    assert_eq!(results[3], cut);
}

/// A result of 2.1 GB, computed from positions and a row that repeats.
#[test]
#[ignore = "takes gigabytes of memory: make test-full"]
fn what_writes_more_than_2_31_bytes() {
    let Some(device) = device() else { return };
    let rows = rows(&device);
    let mut graph = Graph::new("large");
    let row = graph.input("row", DType::U8, [WIDTH]).unwrap();
    let all = graph.broadcast(row, [rows, WIDTH]).unwrap();
    let at = graph.add(Op::Iota { len: Dim::from(rows), dtype: DType::U32 }, &[]).unwrap();
    let at = graph.add(Op::Cast(DType::U8), &[at]).unwrap();
    let at = graph.add(Op::Reshape(Shape::from([rows, 1])), &[at]).unwrap();
    let at = graph.broadcast(at, [rows, WIDTH]).unwrap();
    let y = graph.elementwise(ElementwiseOp::Add, &[all, at]).unwrap();
    graph.output("y", y).unwrap();
    let data: Vec<u8> = (0..WIDTH).map(byte).collect();
    let bytes = run(&device, &graph, &[("row", &data)]).remove(0);
    assert_eq!(bytes.len(), rows * WIDTH);
    let wrong = (0..bytes.len()).step_by(61).find(|at| {
        let (row, column) = (at / WIDTH, at % WIDTH);
        bytes[*at] != byte(column).wrapping_add(row as u8)
    });
    assert_eq!(wrong, None);
}

/// f32: the product of 2.2 GB of weights with a vector. Each row is one number and its vector ones, so that sums are exact.
#[test]
#[ignore = "takes gigabytes of memory: make test-full"]
fn a_matvec_of_more_than_2_31_bytes() {
    let Some(device) = device() else { return };
    let inner = 8192usize;
    let columns = bytes(&device) / (4 * inner);
    let mut graph = Graph::new("large");
    let x = graph.input("x", DType::F32, [1, inner]).unwrap();
    let w = graph.input("w", DType::F32, [inner, columns]).unwrap();
    let y = graph.add(Op::Matmul, &[x, w]).unwrap();
    graph.output("y", y).unwrap();
    let value = |k: usize, n: usize| ((k * 7 + n * 3) % 17) as f32 - 8.0;
    let ones = 1f32.to_le_bytes().repeat(inner);
    let mut weights = Vec::with_capacity(4 * inner * columns);
    for k in 0..inner {
        for n in 0..columns {
            weights.extend(value(k, n).to_le_bytes());
        }
    }
    println!("{} bytes", weights.len());
    let bytes = run(&device, &graph, &[("x", &ones), ("w", &weights)]).remove(0);
    let got: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for (n, got) in got.iter().enumerate() {
        // Whole numbers up to 65536.
        let want: f32 = (0..inner).map(|k| value(k, n)).sum();
        assert_eq!(*got, want, "column {n}");
    }
}

/// A row of so many elements that one loop over it is more than Mesa's software device runs loops for: it leaves all loops of an
/// invocation after 65535 iterations in all, without a word.
#[test]
fn an_order_of_more_than_65535_elements() {
    let Some(device) = device() else { return };
    let values: Vec<u32> = (0..70_000u32).map(|i| (i * 7919) % 65_521).collect();
    let mut graph = Graph::new("large");
    let x = graph.input("x", DType::U32, [values.len()]).unwrap();
    let y = graph.add(Op::ArgSort { axis: 0, descending: false, span: SortSpan::All }, &[x]).unwrap();
    graph.output("y", y).unwrap();
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by_key(|i| values[*i as usize]);
    assert_eq!(words(&run(&device, &graph, &[("x", &data)]).remove(0)), order);
}

/// What no allocation holds is refused before it is tried.
#[test]
fn what_cannot_be_allocated_is_refused() {
    let Some(device) = device() else { return };
    let Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let most = usize::try_from(vulkan.caps().max_allocation_bytes).unwrap();
    let mut graph = Graph::new("large");
    let x = graph.input("x", DType::U8, [most + 16]).unwrap();
    let y = graph.elementwise(ElementwiseOp::BitNot, &[x]).unwrap();
    let y = graph.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![0] }, &[y]).unwrap();
    graph.output("y", y).unwrap();
    let error = device.compile(&graph, &HashMap::new(), &HashMap::new()).unwrap_err().to_string();
    assert!(error.contains("bytes") || error.contains("storage buffers"), "{error}");
    println!("{error}");
}
