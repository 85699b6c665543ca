//! Which integers become symbols, and which expressions the others are.
#![allow(clippy::unwrap_used)]

use tallow_ir::generalize::Refusal;
use tallow_ir::{General, Graph, Structure, generalize, structure, text};

/// Instances of a graph: `{a}` and `{b}` are replaced by numbers, `{a+b}` by their sum, and so on.
fn instance(body: &str, a: i64, b: i64) -> Graph {
    let forms =
        [("{a}", a), ("{b}", b), ("{a+b}", a + b), ("{a*b}", a * b), ("{a+1}", a + 1), ("{64-a}", 64 - a)];
    let body =
        forms.iter().fold(body.to_string(), |text, (form, value)| text.replace(form, &value.to_string()));
    text::parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap()
}

fn of(body: &str, sizes: &[(i64, i64)]) -> Result<General, Refusal> {
    let graphs: Vec<Graph> = sizes.iter().map(|(a, b)| instance(body, *a, *b)).collect();
    let integers: Vec<Vec<i64>> = graphs.iter().map(|graph| structure::integers(graph).collect()).collect();
    let (last, others) = graphs.split_last().unwrap();
    assert!(others.iter().all(|other| Structure(other.clone()) == Structure(last.clone())));
    let others: Vec<&[i64]> = integers[..others.len()].iter().map(Vec::as_slice).collect();
    let general = generalize(last, &others)?;
    // It serves all that it was made from.
    for (graph, integers) in graphs.iter().zip(&integers) {
        assert!(general.bind(integers, &mut vec![]), "{graph}\n{}", general.graph());
    }
    Ok(general)
}

fn serves(general: &General, body: &str, a: i64, b: i64) -> bool {
    general.bind(&structure::integers(&instance(body, a, b)).collect::<Vec<_>>(), &mut vec![])
}

const CACHE: &str = "%0 = input \"x\" : f32[{a},4]\n %1 = input \"y\" : f32[1,4]\n
    %2 = concat %0 %1 axis=0 : f32[{a+1},4]\n %3 = input \"m\" : f32[{a+1}]\n %4 = reshape %3 : f32[{a+1},1]\n
    %5 = broadcast %4 : f32[{a+1},4]\n %6 = mul %2 %5 : f32[{a+1},4]\n return %6 as \"y\"";

#[test]
fn extents_of_one_growth_are_one_symbol() {
    let general = of(CACHE, &[(2, 0), (3, 0)]).unwrap();
    let text = general.graph().to_string();
    assert!(text.contains("symbol 2 <= n0 <= 256"), "{text}");
    assert!(text.contains("%6 = mul %2 %5 : f32[n0+1,4]"), "{text}");
    assert!(serves(&general, CACHE, 256, 0) && serves(&general, CACHE, 2, 0));
    // The range is a guard, and 1 is a number.
    assert!(!serves(&general, CACHE, 257, 0) && !serves(&general, CACHE, 1, 0));
    assert_eq!(of(CACHE, &[(1, 0), (3, 0)]).unwrap_err(), Refusal::Alone);
    let text = of(CACHE, &[(255, 0), (257, 0)]).unwrap().graph().to_string();
    assert!(text.contains("symbol 2 <= n0 <= 512"), "{text}");
}

/// Each integer is compared, so that an expression which two instances suggest is only a guess.
#[test]
fn a_refuted_guess_does_not_serve() {
    let body =
        "%0 = input \"x\" : f32[{a}]\n %1 = input \"y\" : f32[{b}]\n %2 = concat %0 %1 axis=0 : f32[{a+b}]\n
        return %2 as \"y\"";
    let guess = of(body, &[(3, 5), (4, 6)]).unwrap();
    assert!(guess.graph().to_string().contains("f32[2*n0+2]"));
    assert!(serves(&guess, body, 7, 9) && !serves(&guess, body, 7, 10));
    let better = of(body, &[(3, 5), (4, 6), (7, 10)]).unwrap();
    assert!(better.graph().to_string().contains("f32[n1+n0]"));
    assert!(serves(&better, body, 9, 2));
}

/// A multiple of four is one of the symbol, so that kernels load four elements at a time.
#[test]
fn multiples_stay_multiples() {
    let body = "%0 = input \"x\" : f32[{a}]\n %1 = exp %0 : f32[{a}]\n return %1 as \"y\"";
    let general = of(body, &[(32, 0), (96, 0)]).unwrap();
    assert!(general.graph().to_string().contains("f32[32*n0]"));
    assert!(
        serves(&general, body, 32, 0) && serves(&general, body, 256, 0) && !serves(&general, body, 33, 0)
    );
    assert!(of(body, &[(32, 0), (96, 0), (33, 0)]).unwrap().graph().to_string().contains("f32[n0]"));
}

#[test]
fn multiples_can_be_told_apart() {
    let body = "%0 = input \"x\" : f32[{a},{b}]\n %1 = exp %0 : f32[{a},{b}]\n
        return %1 as \"y\"";
    let general = of(body, &[(20, 21), (33, 97), (18, 41)]).unwrap();
    let multiples = general.in_multiples(&[1, 4]).unwrap();
    assert!(multiples.graph().to_string().contains("f32[n0,4*n1]"), "{}", multiples.graph());
    let rest = general.without_multiples(vec![1, 4]);
    for (a, b, (of_multiples, of_rest)) in
        [(2, 4, (true, false)), (9, 96, (true, false)), (8, 97, (false, true)), (8, 257, (false, false))]
    {
        assert_eq!((serves(&multiples, body, a, b), serves(&rest, body, a, b)), (of_multiples, of_rest));
    }
    // A narrower range is without them, too.
    let narrow = rest.within(&[(2, 256), (50, 100)]).unwrap();
    assert!(!serves(&narrow, body, 9, 96) && serves(&narrow, body, 9, 97) && !serves(&narrow, body, 9, 101));
    assert_eq!(narrow.served(&[9, 96]), [9, 97]);
    assert_eq!([narrow.served(&[9, 97]), narrow.served(&[8, 100])], [[9, 97], [8, 99]]);
    assert!(rest.explain().ends_with("not where n1 is a multiple of 4\n"), "{}", rest.explain());
    let twice = multiples.in_multiples(&[1, 2]).unwrap();
    assert_eq!(twice.multiples().collect::<Vec<_>>(), [1, 8]);
    assert!(serves(&twice, body, 9, 96) && !serves(&twice, body, 9, 100));
}

/// Leaves come first; what they are reshaped into says what they are made of.
#[test]
fn products_are_learned_from_reshapes() {
    let body = "%0 = input \"x\" : f32[{a*b}]\n %1 = reshape %0 : f32[{a},{b}]\n %2 = reduce_sum %1 axes=[1] : f32[{a}]\n
        return %2 as \"y\"";
    let general = of(body, &[(3, 5), (7, 11)]).unwrap();
    let text = general.graph().to_string();
    assert!(text.contains("input \"x\" : f32[n0*n1]"), "{text}");
    assert!(serves(&general, body, 2, 200));
    assert!(general.explain().contains("n0 is extent 0 of a reshape"), "{}", general.explain());
}

/// The rest of a buffer is never negative: that bounds the symbol.
#[test]
fn what_is_left_bounds_a_symbol() {
    let body = "%0 = input \"x\" : f32[64]\n %1 = slice %0 axis=0 start={a} len={64-a} : f32[{64-a}]\n
        return %1 as \"y\"";
    let general = of(body, &[(3, 0), (4, 0)]).unwrap();
    let text = general.graph().to_string();
    assert!(text.contains("symbol 2 <= n0 <= 64") && text.contains("f32[-n0+64]"), "{text}");
}

/// Windows fit where the extent is at least as long as one.
#[test]
fn windows_raise_the_minimum() {
    let body =
        "%0 = input \"x\" : f32[{a+1}]\n %1 = window %0 axis=0 size=6 stride=1 dilation=1 : f32[{b},6]\n
        return %1 as \"y\"";
    let general = of(body, &[(21, 17), (30, 26)]).unwrap();
    let text = general.graph().to_string();
    assert!(text.contains("symbol 11 <= n0 <= 256") && text.contains("f32[n0-5,6]"), "{text}");
}

/// The memory of a plan is for the maxima: they are not much larger than what is there where values are large.
#[test]
fn large_values_have_smaller_maxima() {
    let body = "%0 = input \"x\" : f32[{a},1000000]\n %1 = exp %0 : f32[{a},1000000]\n return %1 as \"y\"";
    let text = of(body, &[(3, 0), (5, 0)]).unwrap().graph().to_string();
    assert!(text.contains("symbol 2 <= n0 <= 16"), "{text}");
}

#[test]
fn more_than_three_symbols_fall_back_to_numbers() {
    let leaf = |at: usize, extent: i64| format!("%{at} = input \"x{at}\" : f32[{extent}]\n");
    let graph = |extents: [i64; 4]| {
        let mut text: String = extents.iter().enumerate().map(|(at, extent)| leaf(at, *extent)).collect();
        let sum: i64 = extents.iter().sum();
        text += &format!("%4 = concat %0 %1 %2 %3 axis=0 : f32[{sum}]\n return %4 as \"y\"");
        text::parse(&format!("graph \"g\" {{\n{text}\n}}")).unwrap()
    };
    // The third has two values only.
    let all = [[3, 5, 7, 2], [5, 11, 9, 13], [7, 6, 7, 40], [2, 17, 9, 31], [23, 3, 9, 7]].map(graph);
    let integers: Vec<Vec<i64>> = all.iter().map(|graph| structure::integers(graph).collect()).collect();
    let others: Vec<&[i64]> = integers[..4].iter().map(Vec::as_slice).collect();
    let general = generalize(&all[4], &others).unwrap();
    assert_eq!(general.graph().symbols().count(), 3);
    assert!(general.graph().to_string().contains("input \"x2\" : f32[9]"), "{}", general.graph());
}

#[test]
fn structures_differ_in_all_but_integers() {
    let body = "%0 = input \"x\" : f32[{a},4]\n %1 = exp %0 : f32[{a},4]\n return %1 as \"y\"";
    let same = |a: &str, b: &str| Structure(instance(a, 3, 0)) == Structure(instance(b, 9, 0));
    assert!(same(body, body));
    for (from, to) in
        [("exp", "log"), ("f32", "f16"), ("\"x\"", "\"z\""), ("\"y\"", "\"z\""), ("{a},4", "{a},4,2")]
    {
        assert!(!same(body, &body.replace(from, to)), "{from} and {to}");
    }
    let weight = "%0 = weight \"w\" : f32[{a}]\n %1 = exp %0 : f32[{a}]\n return %1 as \"y\"";
    assert!(!same(weight, weight), "extents of weights are part of the structure");
}
