//! State updates: in place, visible to later runs, invisible to readers of the old version.

use super::*;
use crate::Data;

const CACHE: &str = r#"symbol pos <= 3
    %0 = state "cache" : f32[4,2]
    %1 = input "row" : f32[1,2]
    %2 = state_update %0 %1 at=[pos,0] : f32[4,2]
    %3 = reduce_sum %2 axes=[0] : f32[2]
    return %3 as "sum""#;

#[test]
fn updates_stay_for_the_next_run_and_copy_nothing() {
    let graph = graph(CACHE);
    let mut env = env(&graph, &[("pos", 0)], &[&[0.0; 8], &[1.0, 2.0]]);
    let buffer = |env: &Env| match &env.states["cache"].data {
        Data::F32(v) => v.as_ptr(),
        other => panic!("{other:?}"),
    };
    let at = buffer(&env);
    for pos in 0..3 {
        env.symbols.insert("pos".into(), pos);
        let outputs = evaluate(&graph, &mut env).expect("runs");
        let rows = pos as f64 + 1.0;
        same(&outputs[0].1.to_f64s(), &[rows, 2.0 * rows]);
    }
    same(&env.states["cache"].to_f64s(), &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 0.0, 0.0]);
    assert_eq!(buffer(&env), at, "the state was copied");
}

#[test]
fn old_versions_are_seen_as_they_were() {
    let body = r#"%0 = state "s" : i32[3]
        %1 = input "x" : i32[1]
        %2 = state_update %0 %1 at=[1] : i32[3]
        %3 = add %0 %0 : i32[3]
        %4 = state_update %2 %1 at=[2] : i32[3]
        return %2 as "first"
        return %3 as "old"
        return %4 as "second"
        return %0 as "leaf""#;
    let graph = graph(body);
    let mut env = env(&graph, &[], &[&[1.0, 2.0, 3.0], &[9.0]]);
    let outputs = evaluate(&graph, &mut env).expect("runs");
    let all: Vec<f64> = outputs.iter().flat_map(|(_, a)| a.to_f64s()).collect();
    same(&all, &[1.0, 9.0, 3.0, 2.0, 4.0, 6.0, 1.0, 9.0, 9.0, 1.0, 2.0, 3.0]);
    same(&env.states["s"].to_f64s(), &[1.0, 9.0, 9.0]);
}

#[test]
fn a_source_may_be_the_state_itself() {
    // A shift by one: the source is read before any of it is overwritten.
    let body = r#"%0 = state "s" : f32[4]
        %1 = slice %0 axis=0 start=0 len=3 : f32[3]
        %2 = state_update %0 %1 at=[1] : f32[4]
        return %2 as "y""#;
    same(&run(body, &[], &[&[1.0, 2.0, 3.0, 4.0]]), &[1.0, 1.0, 2.0, 3.0]);
}

#[test]
fn updates_that_no_output_needs_do_not_happen() {
    let body = r#"%0 = state "s" : f32[2]
        %1 = input "x" : f32[1]
        %2 = state_update %0 %1 at=[0] : f32[2]
        return %1 as "y""#;
    let graph = graph(body);
    let mut env = env(&graph, &[], &[&[1.0, 2.0], &[9.0]]);
    evaluate(&graph, &mut env).expect("runs");
    same(&env.states["s"].to_f64s(), &[1.0, 2.0]);
}

#[test]
fn outputs_keep_their_values_when_the_state_moves_on() {
    let body = r#"%0 = state "s" : f32[1]
        %1 = input "x" : f32[1]
        %2 = add %0 %1 : f32[1]
        %3 = state_update %0 %2 at=[0] : f32[1]
        return %3 as "y""#;
    let graph = graph(body);
    let mut env = env(&graph, &[], &[&[1.0], &[1.0]]);
    let first = evaluate(&graph, &mut env).expect("runs");
    let second = evaluate(&graph, &mut env).expect("runs");
    same(&first[0].1.to_f64s(), &[2.0]);
    same(&second[0].1.to_f64s(), &[3.0]);
}
