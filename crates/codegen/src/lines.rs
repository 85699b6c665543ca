//! Lines of GLSL.

/// The head of an unrolled loop of `variable` over `0 .. count`.
pub(crate) fn unrolled(variable: &str, count: u32) -> String {
    format!("[[unroll]] for (uint {variable} = 0u; {variable} < {count}u; ++{variable})")
}

/// Wraps lines in a braced block after `head`, or in a bare block if `head` is empty.
pub(crate) fn block(head: &str, lines: Vec<String>) -> Vec<String> {
    let mut all = vec![format!("{head} {{").trim_start().to_string()];
    all.extend(lines.into_iter().map(|l| format!("    {l}")));
    all.push("}".into());
    all
}
