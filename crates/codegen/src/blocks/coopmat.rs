//! Cooperative matrices: what shaders with them demand, and the kernel that tells their fragment layout.

/// A kernel of 32 invocations that writes as many words to binding 0: 1 where matrices lie as `attention_flash_registers.comp` needs them, else
/// 0.
pub const COOPMAT_FRAGMENT_LAYOUT_KERNEL: &str = include_str!("../templates/coopmat_fragment_layout.comp");

/// What kernels with products of matrices demand of a shader compiler.
pub(crate) fn matrix_extensions() -> [&'static str; 5] {
    [
        "GL_EXT_shader_explicit_arithmetic_types_float16",
        "GL_EXT_shader_16bit_storage",
        "GL_KHR_memory_scope_semantics",
        "GL_KHR_cooperative_matrix",
        "GL_KHR_shader_subgroup_basic",
    ]
}
