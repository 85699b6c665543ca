//! Selects the functions of `templates/math.glsl` and `math64.glsl` that a kernel needs.

use std::collections::BTreeSet;

use minijinja::context;

use crate::kernel::CodegenError;
use crate::template::render;

const FUNCTIONS: &[&str] = &[
    "acos_of",
    "asin_of",
    "atan_of",
    "bits_bf16",
    "bits_f8",
    "byte_of",
    "cos_of",
    "cosh_of",
    "div_by",
    "div_of",
    "erf_of",
    "exp2_of",
    "exp_of",
    "expm1_of",
    "is_nan",
    "log1p_of",
    "log2_of",
    "log_of",
    "low_byte",
    "max_of",
    "min_of",
    "narrow_bf16",
    "narrow_f16",
    "narrow_f8",
    "narrow_i16",
    "narrow_u8",
    "number",
    "odd_int",
    "odd_of",
    "philox_of",
    "pow2_of",
    "pow_of",
    "quarter_of",
    "rem_of",
    "round_bf16",
    "round_f16",
    "round_f8",
    "round_of",
    "rsqrt_of",
    "shl_of",
    "shr_of",
    "sign_of",
    "sin_of",
    "sinh_of",
    "sort_key",
    "split_of",
    "tan_of",
    "tanh_of",
    "to_int",
    "to_long",
    "to_uint",
    "value_f8",
];

/// A function, and the name of the function with which the template defines it.
const DEFINED_WITH: &[(&str, &str)] = &[("bits_bf16", "round_bf16"), ("bits_f8", "round_f8")];

/// The same for double-precision functions.
const DEFINED_WITH_64: &[(&str, &str)] = &[
    ("exp_of", "pow2_of"),
    ("exp2_of", "pow2_of"),
    ("log_of", "split_of"),
    ("log2_of", "split_of"),
    ("log1p_of", "split_of"),
    ("asin_of", "atan_of"),
    ("acos_of", "atan_of"),
    ("sin_of", "quarter_of"),
    ("cos_of", "quarter_of"),
    ("tan_of", "quarter_of"),
];

fn calls(text: &str) -> BTreeSet<&'static str> {
    FUNCTIONS.iter().copied().filter(|f| text.contains(&format!("{f}("))).collect()
}

/// The definitions of all functions that `text` calls, and that those call.
pub(crate) fn library(text: &str) -> Result<String, CodegenError> {
    let (long, double) = (text.contains("int64_t"), text.contains("double"));
    let mut used = calls(text);
    loop {
        // Some functions are defined together with others.
        let doubles = DEFINED_WITH_64.iter().filter(|_| double);
        for (part, whole) in DEFINED_WITH.iter().chain(doubles) {
            if used.contains(part) {
                used.insert(whole);
            }
        }
        if used.is_empty() {
            return Ok(String::new());
        }
        let mut defined =
            render("math.glsl", context! { used => used.clone(), long => long, double => double })? + "\n";
        if double {
            defined += &(render("math64.glsl", context! { used => used.clone() })? + "\n");
        }
        let more = calls(&defined);
        if more.is_subset(&used) {
            return Ok(defined);
        }
        used.extend(more);
    }
}
