//! The functions of `templates/math.glsl`: which of them a kernel needs.

use std::collections::BTreeSet;

use minijinja::context;

use crate::template::render;

/// Which functions of `math.glsl` a text calls, and which those call.
pub(crate) fn used_functions(text: &str) -> BTreeSet<&'static str> {
    const ALL: &[&str] = &[
        "is_nan",
        "number",
        "to_uint",
        "to_int",
        "sort_key",
        "sign_of",
        "round_of",
        "min_of",
        "max_of",
        "div_of",
        "rem_of",
        "pow_of",
        "expm1_of",
        "log2_of",
        "log1p_of",
        "rsqrt_of",
        "tan_of",
        "asin_of",
        "acos_of",
        "atan_of",
        "sinh_of",
        "cosh_of",
        "shl_of",
        "shr_of",
        "philox_of",
        "tanh_of",
        "erf_of",
        "sin_of",
        "cos_of",
        "round_f16",
        "round_bf16",
        "bits_bf16",
        "narrow_f16",
        "narrow_bf16",
        "narrow_u8",
    ];
    let calls = |text: &str| -> BTreeSet<&'static str> {
        ALL.iter().copied().filter(|f| text.contains(&format!("{f}("))).collect()
    };
    let mut used = calls(text);
    if used.contains("bits_bf16") || used.contains("narrow_bf16") {
        used.insert("round_bf16");
    }
    // A function may call others; a few rounds find all.
    loop {
        let Ok(library) = render("math.glsl", context! { used => used.clone() }) else { return used };
        let more = calls(&library);
        if more.is_subset(&used) {
            return used;
        }
        used.extend(more);
    }
}
