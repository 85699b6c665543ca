//! A fusion means what its body means.

use super::*;
use crate::Data;

#[test]
fn a_fusion_gives_the_bits_of_its_body() {
    // Each node inside rounds too: 2048 + 1 is 2048 in f16, whatever follows.
    let plain = r#"%0 = input "x" : f16[2]
        %1 = const 1.0 : f16[]
        %2 = broadcast %1 : f16[2]
        %3 = add %0 %2 : f16[2]
        %4 = sub %3 %0 : f16[2]
        return %3 as "a"
        return %4 as "b""#;
    let fused = r#"%0 = input "x" : f16[2]
        %1 = fusion map %0 : f16[2], f16[2] {
          %0 = param 0 : f16[2]
          %1 = const 1.0 : f16[]
          %2 = broadcast %1 : f16[2]
          %3 = add %0 %2 : f16[2]
          %4 = sub %3 %0 : f16[2]
          return %3
          return %4
        }
        return %1.0 as "a"
        return %1.1 as "b""#;
    let x = [2048.0, 3.0];
    same(&run(plain, &[], &[&x]), &[2048.0, 4.0, 0.0, 1.0]);
    same(&run(fused, &[], &[&x]), &[2048.0, 4.0, 0.0, 1.0]);
}

#[test]
fn a_fusion_updates_a_state_in_place() {
    let body = r#"symbol pos <= 3
        %0 = state "s" : f32[4]
        %1 = input "x" : f32[1]
        %2 = fusion map %0 %1 : f32[4] {
          symbol pos <= 3
          %0 = param 0 : f32[4]
          %1 = param 1 : f32[1]
          %2 = add %1 %1 : f32[1]
          %3 = state_update %0 %2 at=[pos] : f32[4]
          return %3
        }
        %3 = reduce_sum %2 axes=[0] : f32[]
        return %3 as "sum""#;
    let graph = graph(body);
    let mut env = env(&graph, &[("pos", 1)], &[&[1.0, 0.0, 0.0, 0.0], &[3.0]]);
    let buffer = |env: &Env| match &env.states["s"].data {
        Data::F32(v) => v.as_ptr(),
        other => panic!("{other:?}"),
    };
    let at = buffer(&env);
    same(&evaluate(&graph, &mut env).expect("runs")[0].1.to_f64s(), &[7.0]);
    env.symbols.insert("pos".into(), 2);
    same(&evaluate(&graph, &mut env).expect("runs")[0].1.to_f64s(), &[13.0]);
    same(&env.states["s"].to_f64s(), &[1.0, 6.0, 6.0, 0.0]);
    assert_eq!(buffer(&env), at, "the state was copied");
}
