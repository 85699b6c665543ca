//! Predictions of programs of every algorithm.

use tallow_ir::caps::{self, PROFILES};
use tallow_ir::text::parse;
use tallow_ir::{DeviceCaps, dot, matrix};

use super::*;
use crate::{Module, Schedule, compile};

fn module(text: &str, caps: &DeviceCaps) -> Module {
    let graph = parse(text).expect("a test's graph");
    let graph =
        if caps.int_dot_accelerated { dot::quantize_activations(&graph, caps).unwrap() } else { graph };
    compile(&matrix::round_operands(&graph, caps).unwrap(), caps).unwrap()
}

fn of_module(module: &Module, caps: &DeviceCaps, bindings: &Bindings) -> f64 {
    let each = |launch| module.predict_us(launch, caps, bindings, Launches::ONE);
    (0..module.launches.len()).map(each).sum()
}

/// Programs of every algorithm, at an extent.
fn programs(n: usize) -> Vec<String> {
    let graph = |lines: &str| format!("graph \"p\" {{\n{lines}\n}}\n");
    vec![
        graph(&format!("%0 = input \"x\" : f32[{n},1024]\n%1 = exp %0 : f32[{n},1024]\nreturn %1 as \"y\"")),
        graph(&format!(
            "%0 = input \"x\" : f16[{n},512]\n%1 = permute %0 [1,0] : f16[512,{n}]\nreturn %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},1024]\n%1 = reduce_sum %0 axes=[1] : f32[{n}]\nreturn %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},4]\n%1 = reduce_max %0 axes=[1] : f32[{n}]\nreturn %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},256]\n%1 = reduce_sum %0 axes=[0] : f32[256]\nreturn %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},1024]\n%1 = scan_sum %0 axis=1 : f32[{n},1024]\nreturn %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},1000]\n%1 = argsort %0 axis=1 descending=false : u32[{n},1000]\n\
             return %1 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f16[{n},1024]\n%1 = weight \"w\" : f16[1024,1024]\n\
             %2 = matmul %0 %1 : f16[{n},1024]\nreturn %2 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[{n},1024]\n%1 = weight \"w\" : f32[1024,1024]\n\
             %2 = matmul %0 %1 : f32[{n},1024]\nreturn %2 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"q\" : f16[8,{n},64]\n%1 = input \"k\" : f16[8,512,64]\n%2 = input \"v\" : f16[8,512,64]\n\
             %3 = attention %0 %1 %2 scale=0.125 causal=false : f16[8,{n},64]\nreturn %3 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[1,4096]\n%1 = weight \"w\" : q4_0[{n},4096]\n%2 = dequantize %1 : f32[{n},4096]\n\
             %3 = permute %2 [1,0] : f32[4096,{n}]\n%4 = matmul %0 %3 : f32[1,{n}]\nreturn %4 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[1024]\n%1 = input \"at\" : u32[{n}]\n%2 = input \"y\" : f32[{n}]\n\
             %3 = scatter_add %0 %1 %2 : f32[1024]\nreturn %3 as \"y\""
        )),
        graph(&format!(
            "%0 = input \"x\" : f32[1,4096,256]\n%1 = input \"at\" : u32[{n}]\n%2 = input \"y\" : f32[1,{n},256]\n\
             %3 = index_add %0 %1 %2 : f32[1,4096,256]\nreturn %3 as \"y\""
        )),
    ]
}

#[test]
fn predictions_are_finite_on_every_profile() {
    for (name, make) in PROFILES {
        let caps = make();
        for text in programs(48) {
            let us = of_module(&module(&text, &caps), &caps, &Bindings::new());
            assert!(us.is_finite() && us > 0.0, "{name}: {us} of {text}");
        }
    }
}

/// With one schedule. A larger extent may get a better one: sums along 2048 rows of 256 columns are split among
/// workgroups, those along 512 are not, and a prediction of 9.2 us follows one of 10.2.
#[test]
fn more_elements_take_no_less() {
    let caps = caps::h200();
    for number in 0..programs(1).len() {
        let mut before = (0.0, vec![]);
        let mut least = f64::INFINITY;
        for n in [8, 64, 128, 512, 2048, 8192, 32768] {
            let text = programs(n).swap_remove(number);
            let module = module(&text, &caps);
            let schedules: Vec<Schedule> = module.kernels.iter().map(|kernel| kernel.schedule).collect();
            let us = of_module(&module, &caps, &Bindings::new());
            assert!(schedules != before.1 || us >= before.0, "{us} after {} us: {text}", before.0);
            (before, least) = ((us, schedules), least.min(us));
        }
        assert!(before.0 > least, "{least} to {} us of program {number}", before.0);
    }
}

#[test]
fn symbols_count_as_they_are_bound() {
    let text = "graph \"p\" {\nsymbol rows <= 65536\n%0 = input \"x\" : f32[rows,1024]\n\
                %1 = exp %0 : f32[rows,1024]\nreturn %1 as \"y\"\n}\n";
    let caps = caps::h200();
    let module = module(text, &caps);
    let at = |rows: u64| of_module(&module, &caps, &Bindings::from([("rows".into(), rows)]));
    assert_eq!(at(65536), of_module(&module, &caps, &Bindings::new()));
    assert!(at(16) < at(4096) && at(4096) < at(65536));
    // 512 MiB at 4.03 TB/s.
    let memory = 2.0 * 65536.0 * 4096.0 / 4.032e6;
    assert!((at(65536) / memory - 1.0).abs() < 0.3, "{} and {memory}", at(65536));
}

#[test]
fn launches_side_by_side_share_what_they_wait_for() {
    let caps = caps::h200();
    let module = module(&programs(64).swap_remove(0), &caps);
    let of = |launches| module.predict_us(0, &caps, &Bindings::new(), launches);
    let many = of(Launches { count: 32, share_operands: false });
    assert!(many < of(Launches::ONE) / 2.0, "{many}");
    assert!(of(Launches { count: 32, share_operands: true }) <= many);
    assert_eq!(module.predict_us(9, &caps, &Bindings::new(), Launches::ONE), 0.0);
}
