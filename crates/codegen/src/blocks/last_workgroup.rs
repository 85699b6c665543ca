//! Combination of partials by the last workgroup to finish. No workgroup waits for another.

use crate::emit::Emitter;
use crate::glsl::Glsl;
use crate::kernel::Scratch;

/// Adds a buffer of `count` partials of type `ty`, and returns its declaration as the array `name`.
pub(crate) fn partials(e: &mut Emitter<'_>, name: &str, ty: Glsl, count: u64) -> String {
    let binding = e.scratch(Scratch { bytes: count * u64::from(ty.bytes()), fill: None });
    declaration(binding, name, ty)
}

/// Adds `count` counters, one for each result that workgroups share, and returns the declarations that [`elect`] uses.
pub(crate) fn counters(e: &mut Emitter<'_>, count: u64) -> String {
    let binding = e.scratch(Scratch { bytes: 4 * count, fill: Some(0) });
    declaration(binding, "done", Glsl::Uint) + "\nshared uint before;"
}

fn declaration(binding: usize, name: &str, ty: Glsl) -> String {
    let (first, rest) = name.split_at(1);
    let block = first.to_uppercase() + rest;
    format!(
        "layout(set = 0, binding = {binding}, std430) coherent buffer {block} {{ {} {name}[]; }};",
        ty.name()
    )
}

/// The lines after which only the last of `parts` workgroups continues. It sees what the others wrote to coherent
/// buffers. The invocation for which `one` holds increments the counter `done[at]`, and resets it in the last workgroup.
pub(crate) fn elect(one: &str, at: &str, parts: &str) -> [String; 7] {
    [
        "memoryBarrierBuffer();".into(),
        "barrier();".into(),
        format!("if ({one}) before = atomicAdd(done[{at}], 1u);"),
        "barrier();".into(),
        format!("if (before + 1u < {parts}) return;"),
        "memoryBarrierBuffer();".into(),
        format!("if ({one}) done[{at}] = 0u;"),
    ]
}
