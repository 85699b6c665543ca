//! Gradients on the device where kernels compute again what the forward pass rounded.

use tallow_ir::text::parse;
use tallow_ir::{gradient, verify};
use tallow_tests::random_inputs;

use crate::harness::{device, run};

/// Many workgroups share a row, so the maximum and its gradient are two kernels. The second computes the elements again, in
/// 32 bits, and compares them with the maximum, which has 16: none need be equal. The shift of a row is part of each
/// element, so its gradient is that of the maximum, `2 m`, whichever element that is.
#[test]
fn a_maximum_has_a_gradient_whatever_is_rounded() {
    let Some(device) = device() else { return };
    for dtype in ["f16", "bf16", "f32"] {
        let text = "graph \"maximum\" {
  %0 = input \"x\" : f16[3,262144]
  %1 = input \"c\" : f16[3,262144]
  %2 = input \"shift\" : f16[3,1]
  %3 = mul %0 %1 : f16[3,262144]
  %4 = mul %3 %1 : f16[3,262144]
  %5 = broadcast %2 : f16[3,262144]
  %6 = add %4 %5 : f16[3,262144]
  %7 = reduce_max %6 axes=[1] : f16[3]
  %8 = mul %7 %7 : f16[3]
  return %7 as \"m\"
  return %8 as \"y\"
}
";
        let graph = parse(&text.replace("f16", dtype)).unwrap_or_else(|e| panic!("{e:?}"));
        let graph = gradient(&graph, &["y"], &["shift"]).unwrap();
        let graph = verify(graph).unwrap().into_graph();
        let results = run(&device, &graph, &random_inputs(&graph, 7)).unwrap();
        let of = |name: &str| results.iter().find(|(n, _)| n == name).unwrap().1.to_f64s();
        for (m, found) in of("m").into_iter().zip(of("grad.shift")) {
            assert!((found - 2.0 * m).abs() <= 0.02 * m.abs(), "{dtype}: {found}, not 2 * {m}");
        }
    }
}
