//! The page `docs/candle-api.md`: each public method of `candle_core` 0.11, and whether it is here.
//!
//! `UPDATE_DOCS=1` writes the page. Rows of methods that are not here fail once they are.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use Status::{Differs, Not, Same};

enum Status {
    /// Name, arguments, results and errors.
    Same,
    /// Here, but.
    Differs(&'static str),
    /// Not here, because.
    Not(&'static str),
}

const VALUE: &str = "tensors are values that never change, so that graphs may be rearranged: ";
const CUSTOM: &str = "Candle's custom operations compute on its storages";

/// Names separated by blanks, and what holds for each of them.
type Rows = &'static [(&'static str, Status)];

const TENSOR: Rows = &[
    (
        "new full from_iter from_vec from_slice zeros zeros_like ones ones_like eye tril2 triu2 meshgrid \
         from_raw_buffer read_npy read_npz read_npz_by_name write_npy write_npz save_safetensors write_bytes",
        Same,
    ),
    (
        "arange arange_step",
        Differs("a step that changes nothing is an error, where Candle's loop does not end"),
    ),
    (
        "to_scalar to_vec0 to_vec1 to_vec2 to_vec3",
        Differs("computes what is not known yet; so it may fail as devices do"),
    ),
    ("dtype device rank dim dims0 dims1 dims2 dims3 dims4 dims5 normalize_axis", Same),
    ("shape dims elem_count", Same),
    (
        "stride is_contiguous is_fortran_contiguous",
        Differs("Candle's for views, although nothing is shared; `cat` of views gives a contiguous tensor"),
    ),
    ("contiguous force_contiguous", Same),
    ("copy", Differs("the tensor itself: nothing is shared that could change")),
    ("detach", Same),
    ("to_device", Differs("computes, then copies at once; devices are the CPU and those of Vulkan")),
    ("to_dtype where_cond", Same),
    ("reshape squeeze unsqueeze flatten flatten_to flatten_from flatten_all t transpose permute", Same),
    ("get get_on_dim narrow chunk broadcast_as broadcast_left expand repeat", Same),
    ("flip roll", Differs("any layout, also of nothing")),
    ("cat stack pad_with_zeros pad_with_same slice_scatter slice_scatter0 slice_assign apply apply_t", Same),
    ("eq ne lt le gt ge broadcast_eq broadcast_ne broadcast_lt broadcast_le broadcast_gt broadcast_ge", Same),
    (
        "add sub mul broadcast_add broadcast_sub broadcast_mul",
        Differs("element types are compared also where there are no elements"),
    ),
    (
        "div broadcast_div",
        Differs(
            "integers divided by 0 give 0, where Candle panics; `x / 3.0` divides, where Candle multiplies by a rounded inverse",
        ),
    ),
    ("maximum minimum broadcast_maximum broadcast_minimum", Differs("NaN on either side gives NaN")),
    ("clamp round_to", Same),
    ("affine", Differs("an `add` of 0 is left out, so that a product of -0 stays it, unless `mul` is 0")),
    (
        "neg exp log sin cos tanh abs sqr sqrt recip ceil floor round sign relu silu gelu gelu_erf erf elu powf",
        Differs("integers are an error where the function has no integer value; Candle panics"),
    ),
    ("pow broadcast_pow", Differs("negative bases have their powers, where Candle's logarithm gives NaN")),
    ("cmp", Not("`eq`, `ne`, `lt`, `le`, `gt`, `ge` say it")),
    ("sum sum_keepdim sum_all", Same),
    (
        "mean mean_keepdim mean_all var var_keepdim",
        Differs(
            "integers are an error, where Candle multiplies by an inverse rounded to 0; nothing has no variance",
        ),
    ),
    (
        "max max_keepdim max_all min min_keepdim min_all",
        Differs("also over several axes; no rows give no results, where Candle fails; NaN gives NaN"),
    ),
    ("argmax argmax_keepdim argmin argmin_keepdim", Differs("no rows give no results, where Candle fails")),
    ("log_sum_exp norm", Same),
    ("dot mv", Same),
    ("matmul", Differs("any layout")),
    ("broadcast_matmul", Same),
    (
        "index_select embedding gather",
        Differs(
            "an index out of range is clamped: it is data, for which a GPU cannot stop (Candle fails, but takes the largest number of the type as a wish for zeros); any layout; `embedding` takes indices of any shape",
        ),
    ),
    (
        "scatter scatter_add index_add",
        Differs("what an index out of range names is not written (Candle fails); any layout"),
    ),
    ("cumsum", Differs("a scan, of integers too; Candle multiplies by a triangle of ones")),
    ("arg_sort_last_dim sort_last_dim", Differs("stable; NaN is above every number")),
    (
        "rand rand_like randn randn_like",
        Differs(
            "Philox on the device: the same numbers on every device for the same seed, not those of Candle",
        ),
    ),
    ("conv1d conv_transpose1d conv2d conv_transpose2d", Same),
    ("conv1d_with_algo conv2d_with_algo", Not("the algorithms are those of cuDNN")),
    ("avg_pool2d avg_pool2d_with_stride", Differs("integers are an error, where Candle truncates")),
    ("max_pool2d max_pool2d_with_stride", Differs("NaN where a window holds one")),
    (
        "interpolate1d interpolate2d upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bilinear2d_with_scale",
        Same,
    ),
    ("unfold", Same),
    (
        "slice_set scatter_set scatter_add_set",
        Not(
            "VALUE:`slice_scatter`, `slice_assign` give a new tensor, and a `State` holds one that is replaced in place",
        ),
    ),
    ("const_set zero_set one_set", Not("VALUE:`full`, `zeros_like` and `ones_like` give new ones")),
    ("empty empty_like", Not("memory is planned by the compiler, and never read before it is written")),
    (
        "from_storage storage_and_layout layout strided_index strided_blocks",
        Not("a tensor has no storage until it is computed, and no layout of its own then"),
    ),
    ("id is_variable track_op", Same),
    (
        "backward",
        Differs(
            "where a function bends, gradients are PyTorch's (`relu` at 0 has 0); rounding passes back 0, where Candle fails",
        ),
    ),
    ("sorted_nodes", Not("expressions are graphs of the compiler's")),
    (
        "apply_op1 apply_op2 apply_op3 apply_op1_arc apply_op2_arc apply_op3_arc apply_op1_no_bwd apply_op2_no_bwd apply_op3_no_bwd",
        Not(CUSTOM),
    ),
    ("inplace_op1 inplace_op2 inplace_op3", Not(CUSTOM)),
];

const DEVICE: Rows = &[
    ("is_cpu is_cuda is_metal same_device supports_bf16 bf16_default_to_f32", Same),
    ("synchronize", Differs("nothing to wait for: a value that was read is computed")),
    ("set_seed", Differs("one sequence for all devices of the process, the CPU too")),
    ("get_current_seed", Differs("one for all devices of the process; Candle has none on the CPU")),
    ("new_cuda new_cuda_with_stream new_metal", Not("`new_vulkan` opens any GPU")),
    ("cuda_if_available metal_if_available", Not("`vulkan_if_available` opens the best GPU, or the CPU")),
    (
        "as_cuda_device as_metal_device location",
        Not("the devices are those of Vulkan; `name` tells which one"),
    ),
    ("with_context", Not("there is no pool of threads to enter")),
];

const DTYPE: Rows = &[
    ("as_str is_int is_float", Same),
    ("size_in_bytes", Differs("0 for block formats, as Candle's is for types below a byte")),
];

/// Each type's title, rows, and number of methods that Candle 0.11.1 has.
const TYPES: [(&str, Rows, usize); 3] =
    [("Tensor", TENSOR, 216), ("Device", DEVICE, 18), ("DType", DTYPE, 4)];

/// The functions of `candle_nn::rotary_emb`.
const ROTARY_EMB: &str = "
## `candle_nn::rotary_emb`

`tallow::nn::rotary_emb` has its five functions, with the same arguments.

| function | here |
|---|---|
| `rope`, `rope_i`, `rope_thd` | differs: any layout. Candle reads the angles of the first sequence for all where only one of \
`cos` and `sin` has an axis of batches, and those of wrong rows where angles with that axis have more rows than there are \
positions; here each sequence is rotated by its own first rows |
| `rope_slow`, `rope_i_slow` | same |
";

/// The layers of `candle_nn`, and where their weights come from.
const NN: &str = "
## `candle_nn`

`tallow::nn` has these names, with the same arguments:

| names | here |
|---|---|
| `Init`, `init` | same |
| `VarMap` | `all_vars` is in the order of names; `load` and `set` change no variable where one does not fit; `get` with another \
element type or device is an error |
| `VarBuilder` | one type for all backends, without `VarBuilderArgs`, shards, borrowed bytes and PyTorch's pickles. \
`from_mmaped_safetensors` is safe: it reads a tensor when it is asked for |
| `linear`, `linear_no_bias`, `linear_b`, `embedding` | same |
| `conv1d`, `conv2d`, `conv_transpose1d`, `conv_transpose2d`, each with `_no_bias` | same, without cuDNN's settings |
| `layer_norm`, `layer_norm_no_bias`, `rms_norm`, `group_norm` | same; the functions of tensors are in `nn::ops` |
| `batch_norm`, `BatchNorm` | `with_momentum` instead of `new_with_momentum`; running averages are variables, also in compiled \
functions |
| `prelu`, `Activation` | same; an `Activation` is not read from a configuration file |
| `seq`, `Sequential`, `func`, `func_t`, `Dropout`, `Module`, `ModuleT` | same |
| `lstm`, `gru`, `RNN` | same |
| `loss::nll`, `cross_entropy`, `mse`, `binary_cross_entropy_with_logit`, `huber` | same |
| `Optimizer`, `SGD`, `AdamW`, `ParamsAdamW` | same; `AdamW` also with parameter groups and stochastic rounding |
";

/// What of Candle's own tests is run, and which do not pass.
const CANDLE_TESTS: &str = "
## Candle's own tests

`make test-candle` runs tests of the published package `candle-core` on Tallow's tensors, on the CPU and on a Vulkan
device: all of `matmul_tests`, `indexing_tests`, `conv_tests`, `grad_tests`, `pool_tests`, `bilinear_tests` and
`display_tests`. All pass, except:

| test | why it is left out |
|---|---|
| `avg_pool2d_pytorch`, on the CPU | It rounds means to four digits that lie next to the middle between two. \
The mean of one window is -0.16054999, of another 0.62484998. Candle rounds sums to f32 after each addition, and gets \
-0.1606 and 0.6249. The interpreter adds in f64, and gets the nearest, -0.1605 and 0.6248. |
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> String {
    let mut page = String::from(
        "# Candle's methods\n\n\
         Code for `candle_core` 0.11 moves to Tallow by changing imports. Methods marked *same* have the same name,\n\
         arguments, shapes, element types and values within rounding, and fail on the same calls. General differences:\n\n\
         - Nothing is computed until a value is read, so device errors appear there.\n\
         - 16-bit floats are rounded once per operation.\n\
         - Arguments that are extents may be symbols. Axes take all of Candle's forms.\n\
         - Errors are Candle's variants where both have them.\n\n\
         Extents are numbers, except inside a function that `compile` calls. There a method that reads a symbolic extent as a\n\
         number returns its maximum and makes `compile` fail ([decision 0036](decisions/0036-candle-signatures.md)).\n\
         `sym_dims` returns expressions.\n\n\
         This page is written by `UPDATE_DOCS=1 cargo test -p tallow-tests --test candle api` and checked by that test.\n\
         The other tests of `tests/tests/candle` compare the methods with Candle's.\n",
    );
    for (title, rows, _) in TYPES {
        let _ = write!(page, "\n## {title}\n\n| method | here |\n|---|---|\n");
        let mut lines: Vec<String> = Vec::new();
        for (names, status) in rows {
            let here = match status {
                Same => "same".to_string(),
                Differs(why) => format!("differs: {why}"),
                Not(why) => format!("not here: {}", why.replace("VALUE:", VALUE)),
            };
            lines.extend(names.split_whitespace().map(|name| format!("| `{name}` | {here} |\n")));
        }
        lines.sort();
        page.extend(lines);
    }
    page.push_str(NN);
    page.push_str(ROTARY_EMB);
    page.push_str(CANDLE_TESTS);
    page
}

#[test]
fn the_page_is_what_the_table_says() {
    let path = root().join("docs/candle-api.md");
    if std::env::var("UPDATE_DOCS").is_ok_and(|v| v == "1") {
        std::fs::write(&path, page()).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap();
    assert!(there == page(), "docs/candle-api.md is out of date: UPDATE_DOCS=1 writes it");
}

#[test]
fn the_table_has_every_method_once() {
    for (title, rows, count) in TYPES {
        let mut names: Vec<&str> = rows.iter().flat_map(|(names, _)| names.split_whitespace()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{title}: {names:?}");
        assert_eq!(names.len(), count, "{title}");
    }
}

/// Every `.rs` file of a folder and below.
fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// True if the sources define the method, name it in a row of a macro that does, or a row of the table of elementwise
/// ops gives it.
fn is_here(sources: &str, name: &str) -> bool {
    let defined = [format!("pub fn {name}("), format!("pub fn {name}<")];
    let row = |line: &str| {
        let line = line.trim();
        let words = line.split('"').next().unwrap_or_default();
        line.ends_with('"') && !line.starts_with("//") && words.split_whitespace().any(|word| word == name)
    };
    let elementwise = name.strip_prefix("broadcast_").unwrap_or(name);
    defined.iter().any(|text| sources.contains(text))
        || sources.lines().any(row)
        || tallow_ir::ElementwiseOp::from_name(elementwise).is_some()
}

#[test]
fn what_the_table_says_to_be_here_is_here() {
    let mut text = String::new();
    sources(&root().join("crates/frontend/src"), &mut text);
    text.push_str(&std::fs::read_to_string(root().join("crates/ir/src/dtype.rs")).unwrap());
    let mut wrong = vec![];
    for (title, rows, _) in TYPES {
        for (names, status) in rows {
            for name in names.split_whitespace() {
                match (is_here(&text, name), status) {
                    (true, Same | Differs(_)) | (false, Not(_)) => {}
                    // Another type may have a method of this name.
                    (true, Not(_)) => {}
                    (false, Same | Differs(_)) => wrong.push(format!("{title}::{name} is not here")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
