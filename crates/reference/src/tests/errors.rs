//! What a run refuses, and that it then changes nothing.

use super::*;

const UPDATE: &str = r#"symbol pos <= 9
    %0 = state "s" : f32[4]
    %1 = input "x" : f32[2]
    %2 = weight "w" : f32[2]
    %3 = add %1 %2 : f32[2]
    %4 = state_update %0 %3 at=[pos] : f32[4]
    return %4 as "y""#;

fn refused(change: impl Fn(&mut Env)) -> Error {
    let graph = graph(UPDATE);
    let mut env = env(&graph, &[("pos", 1)], &[&[1.0; 4], &[2.0; 2], &[3.0; 2]]);
    evaluate(&graph, &mut env.clone()).expect("runs unchanged");
    change(&mut env);
    let before = env.clone();
    let error = evaluate(&graph, &mut env).expect_err("refused");
    assert_eq!(env.states, before.states);
    error
}

#[test]
fn each_mistake_has_its_error() {
    let symbol = |value| {
        refused(|e| {
            e.symbols.insert("pos".into(), value);
        })
    };
    assert_eq!(symbol(3).to_string(), "an access ends at pos+2 = 5, outside extent 4 = 4");
    assert_eq!(symbol(10).to_string(), "symbol 'pos' is 10, its maximum is 9");
    assert_eq!(symbol(u64::MAX), Error::SymbolAboveMaximum { name: "pos".into(), value: u64::MAX, max: 9 });
    assert_eq!(refused(|e| e.symbols.clear()).to_string(), "symbol 'pos' has no value");
    assert_eq!(refused(|e| e.inputs.clear()).to_string(), "input 'x' is missing");
    assert_eq!(refused(|e| e.weights.clear()).to_string(), "weight 'w' is missing");
    assert_eq!(refused(|e| e.states.clear()).to_string(), "state 's' is missing");
    let input = |ty, shape: &[usize]| {
        refused(|e| drop(e.inputs.insert("x".into(), Arc::new(Array::zeros(ty, shape).expect("small")))))
    };
    assert_eq!(input(DType::F32, &[3]).to_string(), "input 'x' is f32[3], the graph needs f32[2]");
    assert_eq!(input(DType::F16, &[2]).to_string(), "input 'x' is f16[2], the graph needs f32[2]");
    let unsound = refused(|e| {
        let mut array = Array::zeros(DType::F32, &[3]).expect("small");
        array.shape = vec![2];
        e.inputs.insert("x".into(), Arc::new(array));
    });
    assert!(matches!(unsound, Error::Mismatch { .. }), "{unsound}");
}

#[test]
fn leaves_that_no_output_needs_may_be_missing() {
    let body = r#"%0 = input "x" : f32[1]
        %1 = input "unused" : f32[1]
        return %0 as "y""#;
    let graph = graph(body);
    let mut env = env(&graph, &[], &[&[1.0], &[1.0]]);
    env.inputs.remove("unused");
    assert!(evaluate(&graph, &mut env).is_ok());
}

#[test]
fn slices_are_checked_under_symbol_values() {
    let body = r#"symbol n <= 8
        %0 = input "x" : f32[n]
        %1 = slice %0 axis=0 start=2 len=1 : f32[1]
        return %1 as "y""#;
    same(&run(body, &[("n", 3)], &[&[1.0, 2.0, 3.0]]), &[3.0]);
    let graph = graph(body);
    let mut short = env(&graph, &[("n", 2)], &[&[1.0, 2.0]]);
    assert!(matches!(
        evaluate(&graph, &mut short),
        Err(Error::OutOfBounds { end_value: 3, extent_value: 2, .. })
    ));
}

#[test]
fn graphs_that_would_not_verify_are_errors() {
    let parsed = |body: &str| parse(&format!("graph \"t\" {{\n{body}\n}}")).expect("parses");
    let param = parsed("%0 = param 0 : f32[2]\nreturn %0 as \"y\"");
    assert!(matches!(evaluate(&param, &mut Env::default()), Err(Error::Malformed { node: 0, .. })));
    let not_a_state =
        parsed("%0 = input \"x\" : f32[2]\n%1 = state_update %0 %0 at=[0] : f32[2]\nreturn %1 as \"y\"");
    assert!(matches!(evaluate(&not_a_state, &mut Env::default()), Err(Error::Malformed { node: 1, .. })));
}

// Other systems may promise 8 TiB that they do not have.
#[cfg(target_os = "linux")]
#[test]
fn tensors_beyond_memory_are_errors() {
    let body = r#"%0 = const 1.0 : f32[]
        %1 = broadcast %0 : f32[1048576,1048576]
        %2 = exp %1 : f32[1048576,1048576]
        %3 = slice %2 axis=0 start=0 len=1 : f32[1,1048576]
        return %3 as "y""#;
    assert!(matches!(evaluate(&graph(body), &mut Env::default()), Err(Error::OutOfMemory { node: 2, .. })));
}

#[test]
fn what_is_only_looked_at_in_part_takes_no_memory() {
    let part = r#"%0 = const 1.0 : f32[]
        %1 = broadcast %0 : f32[1048576,1048576]
        %2 = slice %1 axis=0 start=0 len=1 : f32[1,1048576]
        %3 = slice %2 axis=1 start=5 len=2 : f32[1,2]
        %4 = exp %3 : f32[1,2]
        return %4 as "y""#;
    same(&run(part, &[], &[]), &[f64::from(std::f32::consts::E); 2]);
}
