//! Attention: heads, groups, causal masks, symbolic keys, element types.

use tallow_codegen::{Schedule, Table, kernel_with, schedules};
use tallow_ir::{DeviceCaps, FusionKind, Op, passes, text};

use crate::{Case, CaseKernel, Expect, case, check, compile_each};

const ATTENTION: &[FusionKind] = &[FusionKind::Attention];

/// Attention of one graph.
#[derive(Clone, Copy)]
struct Attention {
    /// Heads of the queries, and of the keys.
    heads: [u32; 2],
    /// Queries and keys of a head.
    rows: [&'static str; 2],
    /// Elements of a key, and of a value.
    widths: [u32; 2],
    /// Types of the queries, and of the keys and values.
    types: [&'static str; 2],
    causal: bool,
}

impl Attention {
    fn case(self, name: &str) -> Case {
        let Attention { heads: [h, g], rows: [s, t], widths: [d, e], types: [q, kv], causal } = self;
        case(
            name,
            ATTENTION,
            format!(
                r#"
        symbol seq <= 40
        symbol pos <= 200
        %0 = input "q" : {q}[{h},{s},{d}]
        %1 = input "k" : {kv}[{g},{t},{d}]
        %2 = input "v" : {kv}[{g},{t},{e}]
        %3 = attention %0 %1 %2 scale=0.125 causal={causal} : {q}[{h},{s},{e}]
        return %3 as "y""#
            ),
        )
    }
}

#[test]
fn shapes_and_types() {
    let mut cases = vec![];
    for causal in [false, true] {
        let small =
            Attention { heads: [4, 2], rows: ["2", "3"], widths: [16, 16], types: ["f32", "f32"], causal };
        for rows in [["1", "pos+1"], ["seq", "seq"], ["seq", "pos+seq"], ["5", "9"], ["9", "5"], ["1", "1"]] {
            let [s, t] = rows;
            cases.push(Attention { rows, ..small }.case(&format!("{s} of {t}, {causal}")));
        }
        let prompt = Attention { heads: [8, 2], rows: ["seq", "pos+seq"], widths: [64, 64], ..small };
        for types in [["f16", "f16"], ["bf16", "bf16"], ["f32", "f16"], ["f16", "f32"], ["f32", "bf16"]] {
            let [q, kv] = types;
            cases.push(Attention { types, ..prompt }.case(&format!("{q} {kv} {causal}")));
        }
        let token = Attention { rows: ["1", "pos+1"], types: ["f32", "f16"], ..small };
        cases.push(Attention { heads: [8, 1], widths: [128, 128], ..token }.case("all heads of one"));
        cases.push(
            Attention { heads: [3, 3], rows: ["seq", "seq"], widths: [7, 67], ..small }.case("odd widths"),
        );
        // Keys that several workgroups share, in parts of a team's lanes or more.
        let long = Attention { heads: [8, 2], rows: ["1", "2000"], widths: [128, 128], ..token };
        cases.push(long.case("long"));
        let narrow = Attention { heads: [3, 1], rows: ["1", "700"], widths: [8, 24], ..token };
        cases.push(Attention { types: ["f16", "bf16"], ..narrow }.case("long, narrow"));
        // Tiles of queries: with and without slices of keys, the widest, and one tile of few keys.
        let tiled = Attention { heads: [8, 2], rows: ["4", "1000"], widths: [128, 128], ..small };
        cases.push(tiled.case("slices of keys"));
        cases.push(Attention { rows: ["200", "197"], widths: [256, 256], ..tiled }.case("tiles, wide"));
        let odd = Attention { rows: ["100", "3"], widths: [80, 33], types: ["f16", "bf16"], ..tiled };
        cases.push(odd.case("tiles, few keys"));
        cases
            .push(Attention { heads: [32, 32], rows: ["seq", "pos+seq"], ..tiled }.case("tiles, many heads"));
        cases.push(Attention { heads: [1, 1], rows: ["70000", "300"], ..tiled }.case("tiles, many queries"));
        // Heads lie along y, except those of a single query.
        let many = Attention { heads: [70000, 70000], widths: [8, 8], ..small }.case("many heads");
        cases.push(Case { expect: Expect::NoGrid, ..many });
        cases.push(Attention { heads: [2, 1], widths: [256, 512], ..token }.case("wide"));
    }
    check(&cases);
}

#[test]
fn no_queries_or_keys() {
    // Nothing to attend for: the result is a constant without elements.
    let nothing =
        Attention { heads: [2, 2], rows: ["0", "0"], widths: [8, 8], types: ["f32", "f32"], causal: false };
    check(&[Case { expect: Expect::Kinds(&[FusionKind::Map]), ..nothing.case("nothing") }]);
}

/// As in a decoder: keys and values from caches, queries scaled before, heads side by side after.
#[test]
fn of_a_decoder() {
    check(&[case(
        "decoder",
        &[FusionKind::Attention, FusionKind::Map],
        r#"
        symbol seq <= 32
        symbol pos <= 200
        %0 = input "q" : f32[seq,64]
        %1 = input "k" : f32[seq,32]
        %2 = state "kc" : f16[2,256,16]
        %3 = state "vc" : f16[2,256,16]
        %4 = reshape %1 : f32[seq,2,16]
        %5 = permute %4 [1,0,2] : f32[2,seq,16]
        %6 = cast %5 : f16[2,seq,16]
        %7 = state_update %2 %6 at=[0,pos,0] : f16[2,256,16]
        %8 = state_update %3 %6 at=[0,pos,0] : f16[2,256,16]
        %9 = slice %7 axis=1 start=0 len=pos+seq : f16[2,pos+seq,16]
        %10 = slice %8 axis=1 start=0 len=pos+seq : f16[2,pos+seq,16]
        %11 = const 0.5 : f32[]
        %12 = broadcast %11 : f32[seq,64]
        %13 = mul %0 %12 : f32[seq,64]
        %14 = reshape %13 : f32[seq,4,16]
        %15 = permute %14 [1,0,2] : f32[4,seq,16]
        %16 = attention %15 %9 %10 scale=0.25 causal=true : f32[4,seq,16]
        %17 = permute %16 [1,0,2] : f32[seq,4,16]
        %18 = reshape %17 : f32[seq,64]
        return %18 as "y"
        %19 = exp %16 : f32[4,seq,16]
        return %19 as "z"
        return %7
        return %8"#,
    )]);
}

/// Sinks in each kernel that needs no matrices, from memory and computed, with and without a bias.
#[test]
fn sinks() {
    let mut cases = vec![];
    for (dtype, rows, widths) in [
        ("f32", ["1", "40"], [64, 64]),
        ("f16", ["1", "pos+1"], [64, 64]),
        ("f32", ["4", "1000"], [128, 128]),
        ("f16", ["seq", "seq"], [7, 67]),
        ("f64", ["3", "5"], [8, 8]),
    ] {
        for (bias, sinks) in [("", "%3"), ("", "%5"), (" %4", "%5")] {
            let ([s, t], [d, e]) = (rows, widths);
            let plain = case(
                format!("{dtype} {s} of {t}, sinks {sinks}, bias {bias}"),
                ATTENTION,
                format!(
                    r#"
        symbol seq <= 40
        symbol pos <= 200
        %0 = input "q" : {dtype}[4,{s},{d}]
        %1 = input "k" : {dtype}[2,{t},{d}]
        %2 = input "v" : {dtype}[2,{t},{e}]
        %3 = input "sinks" : f32[4]
        %4 = input "bias" : f32[1,{s},{t}]
        %5 = add %3 %3 : f32[4]
        %6 = attention %0 %1 %2{bias} {sinks} scale=0.125 causal=true sinks=true : {dtype}[4,{s},{e}]
        return %6 as "y""#
                ),
            );
            cases.push(match dtype {
                "f64" => Case { expect: Expect::Wide(ATTENTION), ..plain },
                _ => plain,
            });
        }
    }
    check(&cases);
}

/// Biases repeated along each axis, of each type; windows; capped scores.
#[test]
fn biases_windows_and_caps() {
    let mut cases = vec![];
    let shapes = ["4,seq,pos+seq", "1,seq,pos+seq", "4,1,pos+seq", "4,seq,1", "1,1,1"];
    let attributes = ["", " window=3", " softcap=50.0", " window=3 softcap=50.0", " window=4000000000"];
    for ((shape, bias), attributes) in
        shapes.iter().zip(["f32", "f16", "bf16", "f32", "f8e4m3"]).zip(attributes)
    {
        for causal in [false, true] {
            cases.push(case(
                format!("bias of {bias}[{shape}]{attributes} causal={causal}"),
                ATTENTION,
                format!(
                    r#"
        symbol seq <= 40
        symbol pos <= 200
        %0 = input "q" : f16[4,seq,32]
        %1 = input "k" : f16[2,pos+seq,32]
        %2 = input "v" : f16[2,pos+seq,32]
        %3 = input "bias" : {bias}[{shape}]
        %4 = attention %0 %1 %2 %3 scale=0.125 causal={causal}{attributes} : f16[4,seq,32]
        %5 = attention %0 %1 %2 scale=0.125 causal={causal}{attributes} : f16[4,seq,32]
        return %4 as "y"
        return %5 as "z""#
                ),
            ));
        }
    }
    check(&cases);
}

/// If one operand is f64, scores and sums are.
#[test]
fn doubles() {
    let types = [
        ["f64", "f64", "f64"],
        ["f64", "f32", "f64"],
        ["f32", "f64", "f32"],
        ["f16", "f64", "f16"],
        ["f32", "f32", "f64"],
    ];
    let one = |[q, kv, bias]: [&str; 3]| {
        let plain = case(
            format!("attention of {q}, {kv} and {bias}"),
            ATTENTION,
            format!(
                r#"
        %0 = input "q" : {q}[2,3,4]
        %1 = input "k" : {kv}[2,5,4]
        %2 = input "bias" : {bias}[1,3,5]
        %3 = attention %0 %1 %1 %2 scale=0.5 causal=true softcap=2.0 : {q}[2,3,4]
        return %3 as "y""#
            ),
        );
        Case { expect: Expect::Wide(ATTENTION), ..plain }
    };
    check(&types.map(one));
}

/// The kernels of all candidates of a case.
fn candidates(case: &Case, caps: &DeviceCaps) -> Vec<CaseKernel> {
    let graph = text::parse(&case.text).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let fused = passes::run(&graph, caps, &mut |_, _| {}).unwrap();
    let fusion = |op: &Op| if let Op::Fusion(f) = op { Some((**f).clone()) } else { None };
    let fusion = fused.graph().nodes().find_map(|(_, node)| fusion(&node.op)).unwrap();
    let kernel = |schedule: Schedule| {
        let kernel = kernel_with(&fusion, schedule, caps, &mut Table::default()).unwrap();
        let label = format!("{}: {schedule}", case.name);
        CaseKernel { label, kind: fusion.kind, caps: caps.clone(), kernel }
    };
    schedules(&fusion, caps).unwrap().into_iter().map(kernel).collect()
}

/// With cooperative matrices: few queries, 16 and 32 a subgroup, wide rows, with what may be done to scores, and keys that
/// fill tiles or do not, scores in registers and in shared memory. Each two of types and sizes, keys, and attributes meet;
/// with `TALLOW_FULL=1` each three.
#[test]
fn many_queries_by_matrices() {
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let caps = tallow_ir::caps::h200();
    let mut failures = vec![];
    let mut found = vec![];
    let sizes = [("f16", 2, 100), ("f16", 32, 2048), ("bf16", 2, 100), ("bf16", 32, 2048)];
    let all_keys = [("256", 128, 128), ("250", 16, 112), ("seq", 64, 48), ("300", 256, 192)];
    for (i, (dtype, heads, queries)) in sizes.into_iter().enumerate() {
        for (j, (keys, d, e)) in all_keys.into_iter().enumerate() {
            for (k, (bias, attributes)) in [
                ("", "scale=0.125 causal=false round_weights=true"),
                ("", "scale=0.125 causal=true round_weights=true"),
                ("", "scale=0.125 causal=true"),
                ("", "scale=-2.0 causal=false window=9 round_weights=true"),
                (" %3", "scale=0.125 causal=true window=100 softcap=30.0"),
                (" %3", "scale=0.125 causal=false round_weights=true"),
                (" %5", "scale=0.125 causal=true round_weights=true sinks=true"),
                (" %3 %5", "scale=0.125 causal=false round_weights=true sinks=true"),
            ]
            .into_iter()
            .enumerate()
            {
                if !is_full && (i / 2 + i % 2 + j + k) % 2 == 1 {
                    continue;
                }
                // Weights that must not be rounded do not meet values of bf16.
                if dtype == "bf16" && !attributes.contains("round_weights") {
                    continue;
                }
                let symbol = if keys == "seq" { "symbol seq <= 400" } else { "" };
                let bias_input = format!("%3 = input \"bias\" : f32[1,{queries},{keys}]");
                let input = if bias.contains("%3") { bias_input.as_str() } else { "" };
                let sinks_input = format!("%5 = input \"sinks\" : f32[{heads}]");
                let sinks = if bias.contains("%5") { sinks_input.as_str() } else { "" };
                let body = format!(
                    r#"
                {symbol}
                %0 = input "q" : {dtype}[{heads},{queries},{d}]
                %1 = input "k" : {dtype}[2,{keys},{d}]
                %2 = input "v" : {dtype}[2,{keys},{e}]
                {input}
                {sinks}
                %4 = attention %0 %1 %2{bias} {attributes} : {dtype}[{heads},{queries},{e}]
                return %4 as "y""#
                );
                let body = body.lines().filter(|l| !l.trim().is_empty()).collect::<Vec<_>>().join("\n");
                let case = case(format!("{dtype} {heads} {queries} {keys} {attributes}"), ATTENTION, body);
                let all = candidates(&case, &caps);
                // Tiles of few rows are candidates where queries are few, and tiles of many in any case.
                let has = |text: &str| all.iter().any(|k| k.kernel.glsl.contains(text));
                assert!(has("One head and 128 queries a workgroup"), "{}", case.name);
                assert_eq!(has("A tile of 64 rows a workgroup"), heads == 2, "{}", case.name);
                assert_eq!(has("a matrix of factors"), d.max(e) <= 128, "{}", case.name);
                found.extend(all);
            }
        }
    }
    compile_each(&found, &mut failures);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
