//! Threads that share a device.

use tallow::Device;
use tallow_ir::{Dim, Format, Graph, Symbol};
use tallow_reference::Array;
use tallow_tests::{Inputs, random_inputs};

use crate::differential::check_on;
use crate::harness::{device, is_software, run};
use crate::matrix::linear;
use crate::matvec::{Case, Norm};

/// Products by multiply-adds, dot products and cooperative matrices, some with split-K partials in scratch memory, of extents that are
/// known and not.
fn graphs() -> Vec<Graph> {
    let matvec = |rows: i64, k: i64, weights: &[(Format, i64)], norm: Norm, quantized: bool| {
        let case = Case { rows, k, weights: weights.to_vec(), norm, paired: false, quantized };
        case.graph().expect("a graph of this test")
    };
    let seq = || Dim::from(Symbol::new("seq", 150));
    let product =
        |rows: Dim, k: i64, n: i64, format: Format| linear(rows, k, n, format).expect("a graph of this test");
    vec![
        matvec(3, 256, &[(Format::Q8_0, 70), (Format::Q4_0, 35), (Format::Q5_0, 7)], Norm::OfInput, true),
        matvec(1, 4096, &[(Format::Q4_0, 200)], Norm::OfInput, true),
        matvec(1, 8192, &[(Format::Q6_K, 33)], Norm::OfInput, true),
        matvec(8, 1536, &[(Format::Q4_K, 130)], Norm::None, true),
        matvec(2, 5000, &[(Format::F16, 200)], Norm::OfInput, false),
        matvec(1, 768, &[(Format::Q2_K, 1030)], Norm::None, false),
        product(seq(), 768, 72, Format::Q4_0),
        product(seq(), 256, 72, Format::Q6_K),
        product(seq(), 4096, 72, Format::Q4_K),
        product(70.into(), 2048, 130, Format::F16),
        product(129.into(), 36, 66, Format::F16),
    ]
}

/// A graph, its inputs, and the bits of its results.
type Work = (Graph, Inputs, Vec<u64>);

fn bits(results: &[(String, Array)]) -> Vec<u64> {
    results.iter().flat_map(|(_, array)| array.to_f64s()).map(f64::to_bits).collect()
}

/// Graphs that were computed alone on `device`, rightly.
fn computed_alone(device: &Device) -> Vec<Work> {
    let numbered = graphs().into_iter().zip(4600..);
    let compute = |(graph, seed): (Graph, u64)| {
        let inputs = random_inputs(&graph, seed);
        check_on(device, &graph, &inputs).unwrap();
        let alone = bits(&run(device, &graph, &inputs).unwrap());
        (graph, inputs, alone)
    };
    numbered.map(compute).collect()
}

/// What each thread computes is what it computes alone: weights are uploaded, memory is taken and given back, pipelines and recordings
/// come and go while others run.
///
/// On queues that only compute an H200 stands still or gives wrong results after some 2000 runs (decision 0034); `TALLOW_FULL=1` does
/// 16000.
#[test]
fn threads_that_share_a_device_get_their_own_results() {
    let Some(shared) = device() else { return };
    let cases = computed_alone(&shared);
    let (threads, rounds) = match is_software(&shared) {
        true => (3, 2),
        false if crate::harness::is_full() => (16, 1000),
        false => (16, 100),
    };
    let one_thread = |thread: usize| {
        for round in 0..rounds {
            // Neighbours do different work, and each gets to all of it: 7 and the number of works have no common factor.
            let at = (thread + 7 * round) % cases.len();
            let (graph, inputs, alone) = &cases[at];
            let concurrent = bits(&run(&shared, graph, inputs).unwrap());
            let wrong = concurrent.iter().zip(alone).filter(|(a, b)| a != b).count();
            assert_eq!(wrong, 0, "of {} numbers of work {at}, thread {thread}, round {round}", alone.len());
        }
    };
    std::thread::scope(|scope| {
        let one_thread = &one_thread;
        for thread in 0..threads {
            scope.spawn(move || one_thread(thread));
        }
    });
}
