//! Cooperative matrices: the GLSL extensions they need, and the kernel that probes their fragment layout.

/// A kernel of 32 invocations that writes 32 words to binding 0. A word is 1 if the fragment layout is the one that
/// `attention_flash_registers.comp` assumes, else 0.
pub const COOPMAT_FRAGMENT_LAYOUT_KERNEL: &str = include_str!("../templates/coopmat_fragment_layout.comp");

/// The GLSL extensions of kernels that use cooperative matrices.
pub(crate) fn matrix_extensions() -> [&'static str; 5] {
    [
        "GL_EXT_shader_explicit_arithmetic_types_float16",
        "GL_EXT_shader_16bit_storage",
        "GL_KHR_memory_scope_semantics",
        "GL_KHR_cooperative_matrix",
        "GL_KHR_shader_subgroup_basic",
    ]
}
