//! Templates and their rendering; the only module that calls the template engine.
//!
//! Templates look like GLSL: values are `${ name }`, statements are lines that start with `//%`. An undefined name is
//! an error.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value};
use tallow_ir::Format;

use crate::error::CodegenError;

const TEMPLATES: &[(&str, &str)] = &[
    ("coopmat_fragment_layout.comp", include_str!("templates/coopmat_fragment_layout.comp")),
    ("math.glsl", include_str!("templates/math.glsl")),
    ("math64.glsl", include_str!("templates/math64.glsl")),
    ("reduce.glsl", include_str!("templates/reduce.glsl")),
    ("reduce_subgroup.glsl", include_str!("templates/reduce_subgroup.glsl")),
    ("dequant/q4_0.glsl", include_str!("templates/dequant/q4_0.glsl")),
    ("dequant/q4_1.glsl", include_str!("templates/dequant/q4_1.glsl")),
    ("dequant/q5_0.glsl", include_str!("templates/dequant/q5_0.glsl")),
    ("dequant/q5_1.glsl", include_str!("templates/dequant/q5_1.glsl")),
    ("dequant/q8_0.glsl", include_str!("templates/dequant/q8_0.glsl")),
    ("dequant/q2_k.glsl", include_str!("templates/dequant/q2_k.glsl")),
    ("dequant/q3_k.glsl", include_str!("templates/dequant/q3_k.glsl")),
    ("dequant/q4_k.glsl", include_str!("templates/dequant/q4_k.glsl")),
    ("dequant/q5_k.glsl", include_str!("templates/dequant/q5_k.glsl")),
    ("dequant/q6_k.glsl", include_str!("templates/dequant/q6_k.glsl")),
    ("dequant/iq4_nl.glsl", include_str!("templates/dequant/iq4_nl.glsl")),
    ("dequant/iq4_xs.glsl", include_str!("templates/dequant/iq4_xs.glsl")),
    ("dequant/tq1_0.glsl", include_str!("templates/dequant/tq1_0.glsl")),
    ("dequant/tq2_0.glsl", include_str!("templates/dequant/tq2_0.glsl")),
    ("dequant/mxfp4.glsl", include_str!("templates/dequant/mxfp4.glsl")),
    ("dequant/nvfp4.glsl", include_str!("templates/dequant/nvfp4.glsl")),
    ("dequant/entry.glsl", include_str!("templates/dequant/entry.glsl")),
    ("dequant/iq4_levels.glsl", include_str!("templates/dequant/iq4_levels.glsl")),
    ("dequant/iq4_bytes.glsl", include_str!("templates/dequant/iq4_bytes.glsl")),
    ("dequant/fp4_levels.glsl", include_str!("templates/dequant/fp4_levels.glsl")),
    ("dequant/powers_of_3.glsl", include_str!("templates/dequant/powers_of_3.glsl")),
    ("dequant/iq2_xxs.glsl", include_str!("templates/dequant/iq2_xxs.glsl")),
    ("dequant/iq2_xs.glsl", include_str!("templates/dequant/iq2_xs.glsl")),
    ("dequant/iq2_s.glsl", include_str!("templates/dequant/iq2_s.glsl")),
    ("dequant/iq3_xxs.glsl", include_str!("templates/dequant/iq3_xxs.glsl")),
    ("dequant/iq3_s.glsl", include_str!("templates/dequant/iq3_s.glsl")),
    ("dequant/iq1_s.glsl", include_str!("templates/dequant/iq1_s.glsl")),
    ("dequant/iq1_m.glsl", include_str!("templates/dequant/iq1_m.glsl")),
    ("dequant/iq1_value.glsl", include_str!("templates/dequant/iq1_value.glsl")),
    ("dequant/iq2_value.glsl", include_str!("templates/dequant/iq2_value.glsl")),
    ("dequant/iq3_xxs_value.glsl", include_str!("templates/dequant/iq3_xxs_value.glsl")),
    ("dequant/iq3_s_value.glsl", include_str!("templates/dequant/iq3_s_value.glsl")),
    ("dequant/q8_1.glsl", include_str!("templates/dequant/q8_1.glsl")),
    ("dequant/q8_k.glsl", include_str!("templates/dequant/q8_k.glsl")),
    ("dequant/i8.glsl", include_str!("templates/dequant/i8.glsl")),
    ("dequant/plain.glsl", include_str!("templates/dequant/plain.glsl")),
    ("dequant/widen.glsl", include_str!("templates/dequant/widen.glsl")),
    ("dequant_f16/signed.glsl", include_str!("templates/dequant_f16/signed.glsl")),
    ("dequant_f16/nvfp4_scale.glsl", include_str!("templates/dequant_f16/nvfp4_scale.glsl")),
    ("dequant_f16/iq4_nl.glsl", include_str!("templates/dequant_f16/iq4_nl.glsl")),
    ("dequant_f16/iq4_xs.glsl", include_str!("templates/dequant_f16/iq4_xs.glsl")),
    ("dequant_f16/mxfp4.glsl", include_str!("templates/dequant_f16/mxfp4.glsl")),
    ("dequant_f16/nvfp4.glsl", include_str!("templates/dequant_f16/nvfp4.glsl")),
    ("dequant_f16/q3_k.glsl", include_str!("templates/dequant_f16/q3_k.glsl")),
    ("dequant_f16/iq1_s.glsl", include_str!("templates/dequant_f16/iq1_s.glsl")),
    ("dequant_f16/iq1_m.glsl", include_str!("templates/dequant_f16/iq1_m.glsl")),
    ("dequant_f16/iq2_xxs.glsl", include_str!("templates/dequant_f16/iq2_xxs.glsl")),
    ("dequant_f16/iq2_xs.glsl", include_str!("templates/dequant_f16/iq2_xs.glsl")),
    ("dequant_f16/iq2_s.glsl", include_str!("templates/dequant_f16/iq2_s.glsl")),
    ("dequant_f16/iq3_xxs.glsl", include_str!("templates/dequant_f16/iq3_xxs.glsl")),
    ("dequant_f16/iq3_s.glsl", include_str!("templates/dequant_f16/iq3_s.glsl")),
    ("dequant_f16/tq1_0.glsl", include_str!("templates/dequant_f16/tq1_0.glsl")),
    ("dequant_f16/fifth_bits.glsl", include_str!("templates/dequant_f16/fifth_bits.glsl")),
    ("dequant_f16/q4_0.glsl", include_str!("templates/dequant_f16/q4_0.glsl")),
    ("dequant_f16/q4_1.glsl", include_str!("templates/dequant_f16/q4_1.glsl")),
    ("dequant_f16/q4_k.glsl", include_str!("templates/dequant_f16/q4_k.glsl")),
    ("dequant_f16/q5_0.glsl", include_str!("templates/dequant_f16/q5_0.glsl")),
    ("dequant_f16/q5_1.glsl", include_str!("templates/dequant_f16/q5_1.glsl")),
    ("dequant_f16/q5_k.glsl", include_str!("templates/dequant_f16/q5_k.glsl")),
    ("dequant_f16/q6_k.glsl", include_str!("templates/dequant_f16/q6_k.glsl")),
    ("dequant_f16/q8_0.glsl", include_str!("templates/dequant_f16/q8_0.glsl")),
    ("dequant_f16/scaled.glsl", include_str!("templates/dequant_f16/scaled.glsl")),
    ("dequant_f16/scales_k.glsl", include_str!("templates/dequant_f16/scales_k.glsl")),
    ("dequant_f16/shifted.glsl", include_str!("templates/dequant_f16/shifted.glsl")),
    ("unpack_i8/q4_0.glsl", include_str!("templates/unpack_i8/q4_0.glsl")),
    ("unpack_i8/q4_1.glsl", include_str!("templates/unpack_i8/q4_1.glsl")),
    ("unpack_i8/q5_0.glsl", include_str!("templates/unpack_i8/q5_0.glsl")),
    ("unpack_i8/q5_1.glsl", include_str!("templates/unpack_i8/q5_1.glsl")),
    ("unpack_i8/q8_0.glsl", include_str!("templates/unpack_i8/q8_0.glsl")),
    ("unpack_i8/q8_1.glsl", include_str!("templates/unpack_i8/q8_1.glsl")),
    ("unpack_i8/q2_k.glsl", include_str!("templates/unpack_i8/q2_k.glsl")),
    ("unpack_i8/q3_k.glsl", include_str!("templates/unpack_i8/q3_k.glsl")),
    ("unpack_i8/q4_k.glsl", include_str!("templates/unpack_i8/q4_k.glsl")),
    ("unpack_i8/q5_k.glsl", include_str!("templates/unpack_i8/q5_k.glsl")),
    ("unpack_i8/q6_k.glsl", include_str!("templates/unpack_i8/q6_k.glsl")),
    ("unpack_i8/tq2_0.glsl", include_str!("templates/unpack_i8/tq2_0.glsl")),
    ("unpack_i8/pair_scales.glsl", include_str!("templates/unpack_i8/pair_scales.glsl")),
    ("unpack_i8/fp4_bytes.glsl", include_str!("templates/unpack_i8/fp4_bytes.glsl")),
    ("unpack_i8/iq4_nl.glsl", include_str!("templates/unpack_i8/iq4_nl.glsl")),
    ("unpack_i8/iq4_xs.glsl", include_str!("templates/unpack_i8/iq4_xs.glsl")),
    ("unpack_i8/signed_bytes.glsl", include_str!("templates/unpack_i8/signed_bytes.glsl")),
    ("unpack_i8/digits_of_2.glsl", include_str!("templates/unpack_i8/digits_of_2.glsl")),
    ("unpack_i8/digits_of_3.glsl", include_str!("templates/unpack_i8/digits_of_3.glsl")),
    ("unpack_i8/even_signs.glsl", include_str!("templates/unpack_i8/even_signs.glsl")),
    ("unpack_i8/iq1_bytes.glsl", include_str!("templates/unpack_i8/iq1_bytes.glsl")),
    ("unpack_i8/iq2_bytes.glsl", include_str!("templates/unpack_i8/iq2_bytes.glsl")),
    ("unpack_i8/iq3_xxs_bytes.glsl", include_str!("templates/unpack_i8/iq3_xxs_bytes.glsl")),
    ("unpack_i8/iq3_s_bytes.glsl", include_str!("templates/unpack_i8/iq3_s_bytes.glsl")),
    ("unpack_i8/tq1_bytes.glsl", include_str!("templates/unpack_i8/tq1_bytes.glsl")),
    ("unpack_i8/iq1_s.glsl", include_str!("templates/unpack_i8/iq1_s.glsl")),
    ("unpack_i8/iq1_m.glsl", include_str!("templates/unpack_i8/iq1_m.glsl")),
    ("unpack_i8/iq2_xxs.glsl", include_str!("templates/unpack_i8/iq2_xxs.glsl")),
    ("unpack_i8/iq2_xs.glsl", include_str!("templates/unpack_i8/iq2_xs.glsl")),
    ("unpack_i8/iq2_s.glsl", include_str!("templates/unpack_i8/iq2_s.glsl")),
    ("unpack_i8/iq3_xxs.glsl", include_str!("templates/unpack_i8/iq3_xxs.glsl")),
    ("unpack_i8/iq3_s.glsl", include_str!("templates/unpack_i8/iq3_s.glsl")),
    ("unpack_i8/tq1_0.glsl", include_str!("templates/unpack_i8/tq1_0.glsl")),
    ("unpack_i8/mxfp4.glsl", include_str!("templates/unpack_i8/mxfp4.glsl")),
    ("unpack_i8/nvfp4.glsl", include_str!("templates/unpack_i8/nvfp4.glsl")),
    ("quantize/pack.glsl", include_str!("templates/quantize/pack.glsl")),
    ("quantize/bytes.glsl", include_str!("templates/quantize/bytes.glsl")),
    ("quantize/bytes_together.glsl", include_str!("templates/quantize/bytes_together.glsl")),
    ("quantize/signed.glsl", include_str!("templates/quantize/signed.glsl")),
    ("quantize/line.glsl", include_str!("templates/quantize/line.glsl")),
    ("quantize/iq4_nl.glsl", include_str!("templates/quantize/iq4_nl.glsl")),
    ("quantize.comp", include_str!("templates/quantize.comp")),
    ("matvec_epilogue.glsl", include_str!("templates/matvec_epilogue.glsl")),
    ("matvec_columns.glsl", include_str!("templates/matvec_columns.glsl")),
    ("matvec_column_groups.glsl", include_str!("templates/matvec_column_groups.glsl")),
    ("matvec_dot4.glsl", include_str!("templates/matvec_dot4.glsl")),
    ("matvec_stage_f32.glsl", include_str!("templates/matvec_stage_f32.glsl")),
    ("matvec_stage_i8.glsl", include_str!("templates/matvec_stage_i8.glsl")),
    ("grid_stride.comp", include_str!("templates/grid_stride.comp")),
    ("row_split.comp", include_str!("templates/row_split.comp")),
    ("row.comp", include_str!("templates/row.comp")),
    ("matvec.comp", include_str!("templates/matvec.comp")),
    ("matmul.comp", include_str!("templates/matmul.comp")),
    ("matmul_segment.glsl", include_str!("templates/matmul_segment.glsl")),
    ("matmul_fma.glsl", include_str!("templates/matmul_fma.glsl")),
    ("matmul_coopmat.glsl", include_str!("templates/matmul_coopmat.glsl")),
    ("matmul_coopmat_epilogue.glsl", include_str!("templates/matmul_coopmat_epilogue.glsl")),
    ("attention_flash_shared.comp", include_str!("templates/attention_flash_shared.comp")),
    ("attention_flash_registers.comp", include_str!("templates/attention_flash_registers.comp")),
    ("attention_flash_rows.comp", include_str!("templates/attention_flash_rows.comp")),
    ("matmul_coopmat2.comp", include_str!("templates/matmul_coopmat2.comp")),
    ("attention_grad.comp", include_str!("templates/attention_grad.comp")),
    ("attention_grad_tiles.comp", include_str!("templates/attention_grad_tiles.comp")),
    ("attention_prologue.glsl", include_str!("templates/attention_prologue.glsl")),
    ("attention.comp", include_str!("templates/attention.comp")),
    ("attention_decode.comp", include_str!("templates/attention_decode.comp")),
    ("attention_tiled.comp", include_str!("templates/attention_tiled.comp")),
    ("attention_subgroups.comp", include_str!("templates/attention_subgroups.comp")),
    ("map_transposed.comp", include_str!("templates/map_transposed.comp")),
    ("scan.comp", include_str!("templates/scan.comp")),
    ("linear_scan.comp", include_str!("templates/linear_scan.comp")),
    ("scatter_copies.comp", include_str!("templates/scatter_copies.comp")),
    ("index_add.comp", include_str!("templates/index_add.comp")),
    ("sort.comp", include_str!("templates/sort.comp")),
    ("sort_tile.glsl", include_str!("templates/sort_tile.glsl")),
    ("rank_sort.comp", include_str!("templates/rank_sort.comp")),
    ("top_k.comp", include_str!("templates/top_k.comp")),
    ("merge_runs.comp", include_str!("templates/merge_runs.comp")),
    ("repack.comp", include_str!("templates/repack.comp")),
];

/// The names and texts of all templates, interleaved.
pub fn texts() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().flat_map(|(name, text)| [*name, *text])
}

/// The template of a block format in `folder`, if the format has one there.
pub fn of_format(folder: &str, format: Format) -> Option<&'static str> {
    let wanted = format!("{folder}/{}.glsl", format.spec().name);
    TEMPLATES.iter().map(|(name, _)| *name).find(|name| *name == wanted)
}

/// Renders the template `name` with `context`.
pub fn render(name: &'static str, context: Value) -> Result<String, CodegenError> {
    let fail = |source| CodegenError::Template { name, source };
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .block_delimiters("//{%", "%}//")
        .variable_delimiters("${", "}")
        .comment_delimiters("/*#", "#*/")
        .line_statement_prefix("//%")
        .build()
        .map_err(fail)?;
    env.set_syntax(syntax);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    let source = TEMPLATES.iter().find(|(n, _)| *n == name).map(|(_, s)| *s);
    let source =
        source.ok_or_else(|| fail(minijinja::Error::new(minijinja::ErrorKind::TemplateNotFound, name)))?;
    env.render_str(source, context).map_err(fail)
}
