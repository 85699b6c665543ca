//! Cooperative matrices: the GLSL extensions they need, and the kernel that probes their fragment layout.

use minijinja::context;
use tallow_ir::matrix::MatrixOperand;

use crate::error::CodegenError;
use crate::template::render;

/// A kernel of 32 invocations that writes 32 words to binding 0. A word is 1 if the device does what
/// `attention_flash_registers.comp` assumes, else 0: fragments with operands of this type have the expected layout.
///
/// # Errors
/// None but a bug in the template.
pub fn coopmat_fragment_layout_kernel(operand: MatrixOperand) -> Result<String, CodegenError> {
    let holes = context! { name => operand.dtype().name(), ty => element_type(operand), extension => matrix_extensions(operand)[0] };
    render("coopmat_fragment_layout.comp", holes)
}

/// The GLSL type of an element.
pub(crate) fn element_type(operand: MatrixOperand) -> &'static str {
    match operand {
        MatrixOperand::F16 => "float16_t",
        MatrixOperand::Bf16 => "bfloat16_t",
    }
}

/// The GLSL extensions of kernels that use cooperative matrices of this type.
pub(crate) fn matrix_extensions(operand: MatrixOperand) -> [&'static str; 5] {
    [
        match operand {
            MatrixOperand::F16 => "GL_EXT_shader_explicit_arithmetic_types_float16",
            MatrixOperand::Bf16 => "GL_EXT_bfloat16",
        },
        "GL_EXT_shader_16bit_storage",
        "GL_KHR_memory_scope_semantics",
        "GL_KHR_cooperative_matrix",
        "GL_KHR_shader_subgroup_basic",
    ]
}
