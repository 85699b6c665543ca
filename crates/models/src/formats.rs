//! Formats of the tensors in files, as quantizing programs choose them.

use tallow_ir::Format::{self, *};

/// The format, or where rows of `columns` elements are not whole blocks of it, one with smaller blocks and no fewer
/// bits.
pub fn fitting(format: Format, columns: usize) -> Format {
    let is_multiple_of_block = |format: &Format| columns.is_multiple_of(format.block_elements());
    if is_multiple_of_block(&format) {
        return format;
    }
    let smaller = match format {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q2_K | Q3_K | TQ1_0 | TQ2_0 | NVFP4 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K | Q8_K => Q8_0,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | IQ4_NL | MXFP4 => F16,
        F16 | BF16 | F32 | F64 | I8 | I16 | I32 | I64 => format,
    };
    if is_multiple_of_block(&smaller) { smaller } else { F16 }
}

/// Whether a tensor is quantized at all: matrices are, but not those that are small and decide much.
pub fn is_quantized(name: &str, dimensions: usize) -> bool {
    const UNQUANTIZED: &[&str] =
        &["_norm.weight", "ffn_gate_inp.weight", "position_embd", "token_types", "ssm_conv1d"];
    dimensions >= 2 && name.ends_with("weight") && !UNQUANTIZED.iter().any(|role| name.contains(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_whole_blocks() {
        for (format, columns, want) in [
            (Q4_K, 256, Q4_K),
            (Q4_K, 96, Q5_0),
            (Q3_K, 96, Q4_0),
            (Q5_K, 96, Q5_1),
            (Q6_K, 96, Q8_0),
            (IQ4_XS, 96, IQ4_NL),
            (NVFP4, 96, Q4_0),
            (Q4_0, 7, F16),
            (Q6_K, 7, F16),
            (BF16, 7, BF16),
        ] {
            assert_eq!(fitting(format, columns), want, "{format} {columns}");
        }
    }

    #[test]
    fn what_is_left_alone() {
        assert!(is_quantized("blk.0.attn_v.weight", 2) && is_quantized("token_embd.weight", 2));
        assert!(!is_quantized("blk.0.attn_v.weight", 1) && !is_quantized("blk.0.attn_norm.weight", 2));
        assert!(!is_quantized("blk.0.attn_v.bias", 2) && !is_quantized("blk.0.ffn_gate_inp.weight", 2));
    }
}
