//! Combination of partials by the last workgroup to finish. No workgroup waits for another.

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
