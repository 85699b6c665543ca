//! Gradients of attention: both sides, element types, masks, sizes with matrices and without.

use tallow_ir::caps::PROFILES;

use crate::{Case, case, judge, kernels};

/// Storage buffers that the kernels of large cases need at most.
const BUFFERS: u32 = 16;

/// The gradient of one graph's attention.
#[derive(Clone, Copy)]
struct Gradient {
    /// Heads of the queries, and of the keys.
    heads: [u32; 2],
    /// Queries and keys of a head.
    rows: [&'static str; 2],
    /// Elements of a key, and of a value.
    widths: [u32; 2],
    dtype: &'static str,
    attributes: &'static str,
    /// Extents of the bias, if there is one.
    bias: Option<&'static str>,
}

impl Gradient {
    fn case(self, name: &str) -> Case {
        let Gradient { heads: [h, g], rows: [s, t], widths: [d, e], dtype, attributes, bias } = self;
        let wide = if dtype == "f64" { "f64" } else { "f32" };
        let (declared, read) = match bias {
            Some(extents) => (format!("%5 = input \"b\" : {dtype}[{extents}]"), " %5"),
            None => (String::new(), ""),
        };
        case(
            name,
            &[],
            format!(
                r#"symbol seq <= 4000
                %0 = input "q" : {dtype}[{h},{s},{d}]
                %1 = input "k" : {dtype}[{g},{t},{d}]
                %2 = input "v" : {dtype}[{g},{t},{e}]
                %3 = input "g" : {dtype}[{h},{s},{e}]
                %4 = input "m" : {wide}[{h},{s}]
                {declared}
                %6 = attention_grad_queries %0 %1 %2 %3 %4{read} scale=0.125 {attributes} : {dtype}[{h},{s},{d}], {wide}[{h},{s}]
                %7 = attention_grad_keys %0 %1 %2 %3 %4 %6.1{read} scale=0.125 {attributes} : {dtype}[{g},{t},{d}], {dtype}[{g},{t},{e}]
                return %6 as "dq"
                return %7 as "dk"
                return %7.1 as "dv""#
            )
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect::<Vec<_>>()
            .join("\n"),
        )
    }
}

/// Of few queries and keys, most of which are expanded, and of so many that no device binds their scores.
#[test]
fn shapes_types_and_masks() {
    let small = Gradient {
        heads: [4, 2],
        rows: ["40", "72"],
        widths: [64, 64],
        dtype: "bf16",
        attributes: "causal=false",
        bias: None,
    };
    let masks = ["causal=true", "causal=true window=7", "causal=false window=9 softcap=2.0"];
    let mut cases = vec![];
    for (rows, heads) in [(["40", "72"], [4, 2]), (["40000", "39000"], [16, 4]), (["seq", "seq"], [64, 64])] {
        let sized = Gradient { rows, heads, ..small };
        // Expanded, they are kernels that other tests compile, so a few of the small ones do.
        let is_small = rows[0] == "40";
        let widths: &[[u32; 2]] = match is_small {
            true => &[[64, 64], [7, 33]],
            false => &[[64, 64], [128, 128], [16, 48], [96, 32], [7, 33]],
        };
        for widths in widths.iter().copied() {
            let is_usual = widths == [64, 64] || widths == [7, 33];
            let dtypes: &[&str] = if is_usual && !is_small { &["f16", "bf16", "f32"] } else { &["bf16"] };
            for dtype in dtypes.iter().copied() {
                let named = format!("{rows:?} {widths:?} {dtype}");
                cases.push(Gradient { widths, dtype, ..sized }.case(&named));
            }
        }
        for attributes in masks {
            cases.push(Gradient { attributes, ..sized }.case(&format!("{rows:?} {attributes}")));
        }
    }
    let long = Gradient { rows: ["40000", "39000"], heads: [16, 4], ..small };
    for bias in ["16,40000,39000", "1,40000,1", "1,1,39000"] {
        for dtype in ["bf16", "f32"] {
            let biased = Gradient { bias: Some(bias), dtype, attributes: masks[0], ..long };
            if bias != "16,40000,39000" {
                cases.push(biased.case(&format!("bias {bias} {dtype}")));
            }
        }
    }
    let (mut failures, mut found) = (vec![], vec![]);
    for (profile, make) in PROFILES {
        let caps = make();
        // Scores are expanded where a device binds few buffers, and may then take more than it binds.
        let small = if caps.max_storage_buffers < BUFFERS { 5 } else { cases.len() };
        for case in &cases[..small] {
            found.extend(kernels(case, profile, &caps, &mut failures));
        }
    }
    judge(&found, failures);
}
