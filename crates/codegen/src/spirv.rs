//! GLSL to SPIR-V: each distinct text is compiled once, in parallel, and cached on disk.
//!
//! shaderc is built from source with the crate, so a given version of this crate always produces the same SPIR-V. The
//! cache key relies on this (together with the versions that shaderc reports).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rayon::prelude::*;
use shaderc::{
    CompileOptions, Compiler, EnvVersion, OptimizationLevel, ShaderKind, SourceLanguage, SpirvVersion,
    TargetEnv,
};

use tallow_ir::{CustomCode, CustomKernel, DeviceCaps};

use crate::cache::{self, Cache, Key};
use crate::custom;
use crate::error::CodegenError;
use crate::kernel::{Kernel, Target};

/// The shaderc version in `Cargo.lock`; part of the cache key.
const SHADERC: &str = "shaderc 0.10.1";

/// The file name in compiler messages; shaders are single files.
const FILE: &str = "kernel.comp";

/// Source lines shown before and after a line that an error names.
const CONTEXT: usize = 2;

/// Errors shown with source: one early mistake in a shader causes many follow-up errors.
const SHOWN_ERRORS: usize = 3;

/// shaderc's names for a target.
fn versions(target: Target) -> (EnvVersion, SpirvVersion) {
    match target {
        Target::Vulkan12 => (EnvVersion::Vulkan1_2, SpirvVersion::V1_5),
        Target::Vulkan13 => (EnvVersion::Vulkan1_3, SpirvVersion::V1_6),
    }
}

/// A compute shader to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShaderText<'a> {
    /// The name in error messages.
    pub name: &'a str,
    /// The GLSL source.
    pub glsl: &'a str,
    /// Whether spirv-opt optimizes the module, see [`Kernel::optimize`].
    pub optimize: bool,
    /// The Vulkan version that the module targets.
    pub target: Target,
}

impl<'a> From<(&'a str, &'a str)> for ShaderText<'a> {
    /// From name and text; the module targets Vulkan 1.2 and is not optimized by spirv-opt.
    fn from((name, glsl): (&'a str, &'a str)) -> Self {
        ShaderText { name, glsl, optimize: false, target: Target::Vulkan12 }
    }
}

impl<'a> From<&'a Kernel> for ShaderText<'a> {
    fn from(kernel: &'a Kernel) -> Self {
        ShaderText {
            name: &kernel.name,
            glsl: &kernel.glsl,
            optimize: kernel.optimize,
            target: kernel.target,
        }
    }
}

/// A SPIR-V module.
pub type Words = Arc<[u32]>;

/// Statistics of one call of [`compile_spirv`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpirvStats {
    /// Distinct texts compiled.
    pub compiled: usize,
    /// Distinct texts found in the cache on disk.
    pub cache_hits: usize,
    /// Time of the whole call in milliseconds.
    pub millis: f64,
}

/// Compiles compute shaders, [`ShaderText`]s or (name, GLSL), to SPIR-V modules in the same order. Equal texts share
/// one module. The entry point is `main`.
///
/// Distinct texts that are missing in the cache below directory `cache` are compiled in parallel on rayon's pool, a
/// single one on the calling thread. They are then stored in the cache.
///
/// # Errors
/// [`CodegenError::Shader`] with the name of a shader that does not compile, the first in order if there are several.
pub fn compile_spirv<'a, S: Into<ShaderText<'a>> + Copy>(
    shaders: &[S],
    cache: Option<&Path>,
) -> Result<(Vec<Words>, SpirvStats), CodegenError> {
    let start = Instant::now();
    let cache = Cache::open(cache);
    let mut distinct: Vec<Shader<'_>> = vec![];
    let mut by_text: HashMap<(&str, bool, Target), usize> = HashMap::new();
    let mut order = vec![];
    for &shader in shaders {
        let text: ShaderText<'a> = shader.into();
        let at = *by_text.entry((text.glsl, text.optimize, text.target)).or_insert_with(|| {
            let key = key(text);
            distinct.push(Shader { text, words: cache.load(&key).map(Arc::from), key });
            distinct.len() - 1
        });
        order.push(at);
    }
    let missing: Vec<usize> = (0..distinct.len()).filter(|i| distinct[*i].words.is_none()).collect();
    let mut failed = None;
    for (&at, result) in missing.iter().zip(compile_all(&distinct, &missing)) {
        match result {
            Ok(words) => {
                cache.store(&distinct[at].key, &words);
                distinct[at].words = Some(words.into());
            }
            // Modules that did compile are cached nevertheless, so the next attempt is faster.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let modules = order.iter().filter_map(|at| distinct[*at].words.clone()).collect();
    let stats = SpirvStats {
        compiled: missing.len(),
        cache_hits: distinct.len() - missing.len(),
        millis: start.elapsed().as_secs_f64() * 1e3,
    };
    Ok((modules, stats))
}

/// Compiles kernels to SPIR-V modules in the same order, like [`compile_spirv`]. User-written kernels are checked
/// against their registration, and their push constants become a buffer.
///
/// # Errors
/// As [`compile_spirv`], and [`CodegenError::Custom`] for a user-written kernel that fails the check.
pub fn compile_kernels(
    kernels: &[Kernel],
    caps: &DeviceCaps,
    cache: Option<&Path>,
) -> Result<(Vec<Words>, SpirvStats), CodegenError> {
    let given = |k: &Kernel| match k.custom.as_ref().map(|c| &c.code) {
        Some(CustomCode::Spirv(words)) => Some(words.clone()),
        Some(CustomCode::Glsl(_)) | None => None,
    };
    let texts: Vec<&Kernel> = kernels.iter().filter(|k| given(k).is_none()).collect();
    let (compiled, stats) = compile_spirv(&texts, cache)?;
    let mut compiled = compiled.into_iter();
    let mut modules = vec![];
    for kernel in kernels {
        let words = given(kernel).map(Words::from).or_else(|| compiled.next());
        let words = words.ok_or_else(|| failure(&kernel.name, "the compiler gave no module".into()))?;
        modules.push(match &kernel.custom {
            Some(custom) => custom::fit(&words, custom, Some(caps))?.into(),
            None => words,
        });
    }
    Ok((modules, stats))
}

/// Checks that a user-written kernel compiles and matches its registration, on a device that has every feature.
///
/// # Errors
/// [`CodegenError::Shader`] or [`CodegenError::Custom`] with the reason.
pub fn check_custom(kernel: &CustomKernel) -> Result<(), CodegenError> {
    let words = match &kernel.code {
        CustomCode::Spirv(words) => words.clone(),
        CustomCode::Glsl(text) => {
            let text = ShaderText { optimize: true, ..(kernel.name.as_str(), text.as_str()).into() };
            let (modules, _) = compile_spirv(&[text], None)?;
            modules.first().map(|words| words.to_vec()).unwrap_or_default()
        }
    };
    custom::fit(&words, kernel, None).map(|_| ())
}

/// A distinct text and its compiled module.
struct Shader<'a> {
    /// The first shader with this text.
    text: ShaderText<'a>,
    key: Key,
    words: Option<Words>,
}

/// The cache key: a hash of everything that determines the module.
fn key(text: ShaderText<'_>) -> Key {
    let (version, revision) = shaderc::get_spirv_version();
    cache::key(&[
        text.glsl.as_bytes(),
        text.target.name().as_bytes(),
        if text.optimize { b"compute main -O" } else { b"compute main -O0" },
        SHADERC.as_bytes(),
        &version.to_le_bytes(),
        &revision.to_le_bytes(),
        env!("CARGO_PKG_VERSION").as_bytes(),
    ])
}

/// Compiles the modules at `which`, in that order.
fn compile_all(modules: &[Shader<'_>], which: &[usize]) -> Vec<Result<Vec<u32>, CodegenError>> {
    // One compiler lives as long as the process. glslang parses its built-in library when the first compiler is created
    // and drops it with the last. That costs 0.2 s and more each time, against 2 ms for a small kernel.
    static COMPILER: OnceLock<Option<Compiler>> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::new().ok());
    let one = |compiler: &mut Result<Compiler, shaderc::Error>, &at: &usize| {
        let text = modules[at].text;
        let compiler = compiler.as_ref().map_err(|e| failure(text.name, e.to_string()))?;
        compile(compiler, text)
    };
    // Not on the pool: it may be busy for seconds with the shaders of a model whose weights wait for this one.
    if let [at] = which {
        return vec![one(&mut Compiler::new(), at)];
    }
    // Each chunk of the list has one compiler; two chunks per thread balance shaders of unequal size.
    let piece = which.len().div_ceil(2 * rayon::current_num_threads());
    which.par_iter().with_min_len(piece).map_init(Compiler::new, one).collect()
}

fn compile(compiler: &Compiler, text: ShaderText<'_>) -> Result<Vec<u32>, CodegenError> {
    let ShaderText { name, glsl, optimize, target } = text;
    if glsl.contains('\0') {
        return Err(failure(name, "the text contains a NUL character".into()));
    }
    // Without a `#version`, glslang searches for one that has compute shaders and prints its whole built-in library.
    if !glsl.starts_with("#version") {
        return Err(failure(name, "the text does not begin with #version".into()));
    }
    let mut options = CompileOptions::new().map_err(|e| failure(name, e.to_string()))?;
    let (env, spirv) = versions(target);
    options.set_source_language(SourceLanguage::GLSL);
    options.set_target_env(TargetEnv::Vulkan, env as u32);
    options.set_target_spirv(spirv);
    options.set_optimization_level(match optimize {
        true => OptimizationLevel::Performance,
        false => OptimizationLevel::Zero,
    });
    let artifact = compiler
        .compile_into_spirv(glsl, ShaderKind::Compute, FILE, "main", Some(&options))
        .map_err(|e| failure(name, with_source(&e.to_string(), glsl)))?;
    if artifact.get_num_warnings() > 0 {
        tracing::debug!(kernel = name, "shaderc warns:\n{}", artifact.get_warning_messages());
    }
    Ok(artifact.as_binary().to_vec())
}

fn failure(name: &str, log: String) -> CodegenError {
    CodegenError::Shader { name: name.into(), log }
}

/// The compiler's messages, with numbered source lines around the first ones that they name.
fn with_source(log: &str, glsl: &str) -> String {
    let lines: Vec<&str> = glsl.lines().collect();
    let mut out = String::new();
    let mut shown = vec![];
    for message in log.lines() {
        out += message;
        out.push('\n');
        let Some(at) = line_of(message).filter(|at| (1..=lines.len()).contains(at)) else { continue };
        if shown.contains(&at) || shown.len() == SHOWN_ERRORS {
            continue;
        }
        shown.push(at);
        for number in at.saturating_sub(CONTEXT).max(1)..=(at + CONTEXT).min(lines.len()) {
            let mark = if number == at { '>' } else { ' ' };
            out += &format!("{mark} {number:4} | {}\n", lines[number - 1]);
        }
    }
    out
}

/// The line number in a message: 12 for `kernel.comp:12: error: ...`.
fn line_of(message: &str) -> Option<usize> {
    let at = message.find(FILE)? + FILE.len();
    message[at..].strip_prefix(':')?.split(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#version 450\nlayout(local_size_x = 1) in;\nlayout(set = 0, binding = 0) buffer B { float b[]; };\nvoid main() { b[0] = 1.0; }\n";

    #[test]
    fn results_are_in_input_order_and_equal_texts_compile_once() {
        let texts: Vec<String> = (0..40).map(|i| GOOD.replace("1.0", &format!("{}.0", i % 10))).collect();
        let shaders: Vec<(&str, &str)> = texts.iter().map(|t| ("k", t.as_str())).collect();
        let (modules, stats) = compile_spirv(&shaders, None).unwrap();
        assert_eq!((modules.len(), stats.compiled, stats.cache_hits), (40, 10, 0));
        for (i, module) in modules.iter().enumerate() {
            assert_eq!(&module[..2], &[0x0723_0203, 0x0001_0500], "SPIR-V 1.5");
            let constant = (i as f32 % 10.0).to_bits();
            assert!(module.contains(&constant), "the constant of text {i} is in module {i}");
            assert!(Arc::ptr_eq(module, &modules[i % 10]));
        }
        let newer = ShaderText { target: Target::Vulkan13, ..shaders[0].into() };
        let (modules, _) = compile_spirv(&[newer], None).unwrap();
        assert_eq!(modules[0][1], 0x0001_0600, "SPIR-V 1.6");
        assert_eq!(compile_spirv::<(&str, &str)>(&[], None).unwrap().0.len(), 0);
    }

    #[test]
    fn errors_name_kernel_and_line() {
        let bad = GOOD.replace("b[0] = 1.0;", "\n    b[0] = missing;\n");
        let error = compile_spirv(&[("fine", GOOD), ("map .. add", bad.as_str())], None);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("kernel map .. add does not compile"), "{text}");
        assert!(text.contains("kernel.comp:5: error: 'missing' : undeclared identifier"), "{text}");
        assert!(text.contains("     4 | void main() {"), "{text}");
        assert!(text.contains(">    5 |     b[0] = missing;"), "{text}");
        assert!(compile_spirv(&[("k", "\0")], None).is_err());
        assert!(compile_spirv(&[("k", "")], None).is_err());
    }

    /// The cache key contains the compiler version in the lock file.
    #[test]
    fn the_key_names_the_compiler_in_use() {
        let lock = include_str!("../../../Cargo.lock");
        let (name, version) = SHADERC.split_once(' ').unwrap();
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")), "update SHADERC");
        let plain = ShaderText::from(("k", GOOD));
        let others = [
            ShaderText { target: Target::Vulkan13, ..plain },
            ShaderText { glsl: "", ..plain },
            ShaderText { optimize: true, ..plain },
        ];
        assert!(others.iter().all(|other| key(*other) != key(plain)));
    }
}
