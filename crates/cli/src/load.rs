//! Loading a model with a progress bar.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tallow::{Device, Driver, VerifiedKernels, VerifyOptions, cache_dir};
use tallow_gguf::{GgufError, TokenizerOptions};
use tallow_models::{
    Activations, CacheTypes, Decode, Fit, HostLayers, LoadOptions, LoraAdapter, Memory, Model, ModelFile,
    Progress, WrongKernel,
};

use crate::args::{self, CacheArgs, LoadArgs, Verify};
use crate::device::available_memory;
use crate::error::{Error, Result};
use crate::fit::{bytes, describe};

/// Reads and checks a model file. `pre` takes the place of the file's `tokenizer.ggml.pre`.
pub fn open(path: &Path, pre: Option<&str>) -> Result<ModelFile> {
    let options = TokenizerOptions { pre: pre.map(str::to_owned) };
    ModelFile::open_with(path, &options).map_err(|error| about(path, error))
}

/// As [`open`], with adapters, each `FILE` or `FILE:SCALE`.
pub fn open_adapted(path: &Path, pre: Option<&str>, adapters: &[String]) -> Result<ModelFile> {
    let mut file = open(path, pre)?;
    for requested in adapters {
        let (path, scale) = adapter_of(requested);
        let adapter = LoraAdapter::open(path).map_err(|error| about(path, error))?;
        file.add_lora(adapter, scale).map_err(|error| about(path, error))?;
    }
    Ok(file)
}

/// The file and the scale of an adapter. A file whose name ends like a scale is a file.
pub fn adapter_of(requested: &str) -> (&Path, f32) {
    let scaled = requested.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse().ok()?)));
    match scaled {
        Some((path, scale)) if !Path::new(requested).exists() => (Path::new(path), scale),
        Some(_) | None => (Path::new(requested), 1.0),
    }
}

/// An error of a model file, with the file's name unless the error says it already.
pub fn about(path: &Path, error: tallow_models::Error) -> Error {
    match error {
        tallow_models::Error::Gguf(GgufError::Open { .. }) => Error::Run(error),
        source => Error::Model { path: path.into(), source },
    }
}

/// The options that the command line gives.
pub fn options(args: &LoadArgs) -> LoadOptions {
    let (activations, cache) = (activations(args.activations), cache_types(&args.cache));
    let (context, memory, host_layers) = (args.context, args.memory.bytes(), args.memory.host_layers);
    LoadOptions { context, activations, cache, memory, host_layers, ..LoadOptions::default() }
}

/// What the command line says that weights are multiplied by.
pub fn activations(requested: args::Activations) -> Activations {
    match requested {
        args::Activations::Auto => Activations::Auto,
        args::Activations::Exact => Activations::Exact,
        args::Activations::Rounded => Activations::Quantized,
    }
}

/// How the command line says that keys and values are kept.
pub fn cache_types(args: &CacheArgs) -> CacheTypes {
    CacheTypes { keys: args.cache_type_k, values: args.cache_type_v }
}

/// Copies weights to the device and compiles prefill and this decode step, showing how far it is on a terminal.
pub fn load(file: ModelFile, device: &Device, args: &LoadArgs, decode: Decode) -> Result<Model> {
    if args.tune {
        device.set_tuning(true);
    }
    let options = LoadOptions { decode, ..options(args) };
    let options = on_host(&file, device, options)?;
    Ok(with_bar(|progress| file.load(device, &options, progress))?)
}

/// As [`load`], to run the model of this file: what of its kernels is new to the driver is compared with the interpreter.
pub fn load_to_run(
    (file, path): (ModelFile, &Path),
    device: &Device,
    args: &LoadArgs,
    decode: Decode,
) -> Result<Model> {
    let mut model = load(file, device, args, decode)?;
    verify_new(&mut model, path, device, args.verify)?;
    Ok(model)
}

/// Multiply-adds of one comparison at load. The interpreter computes them, and bounds of the error, in about 0.2 s. Two
/// blocks of 32 columns of two matrices with rows of 8192 elements, whose results are quantized, take half as many.
const VERIFY_WORK: u64 = 1 << 22;

/// How long kernels are compared before standard error says so.
const SILENT: Duration = Duration::from_secs(1);

/// Compares the kernels that are new to the driver.
fn verify_new(model: &mut Model, path: &Path, device: &Device, when: Verify) -> Result<()> {
    let Some(driver) = Driver::of(device) else { return Ok(()) };
    let mut verified = match (when, cache_dir()) {
        (Verify::Auto, Some(dir)) if !device.is_software() => VerifiedKernels::open(&dir, &driver),
        (Verify::Always, _) => VerifiedKernels::default(),
        (Verify::Auto | Verify::Never, _) => return Ok(()),
    };
    let options = VerifyOptions { all: false, memory: Some(available_memory() / 2), work: Some(VERIFY_WORK) };
    let (kernels, start, mut is_said) = (model.new_kernels(&verified), Instant::now(), false);
    let wrong = model.verify_new(&mut verified, &options, &mut |_, _| {
        if !is_said && start.elapsed() > SILENT {
            is_said = true;
            let _ = writeln!(std::io::stderr(), "[verifying {kernels} kernels on this driver, once]");
        }
    })?;
    tracing::debug!(kernels, seconds = start.elapsed().as_secs_f64(), "kernels were verified");
    match wrong {
        None => Ok(()),
        Some(WrongKernel { step, check }) => Err(Error::WrongKernel {
            step: step.name(),
            name: check.name,
            device: driver.device,
            driver: driver.driver,
            model: path.into(),
        }),
    }
}

/// The options for a model on a device of this machine. Where layers are to be in the host's memory, their number, and on
/// standard error what that means.
pub fn on_host(file: &ModelFile, device: &Device, options: LoadOptions) -> Result<LoadOptions> {
    if options.host_layers == HostLayers::default() {
        return Ok(options);
    }
    let options = LoadOptions { host_memory: Some(available_memory()), ..options };
    let fit = file.fit(device.caps(), &options, device.free_memory())?;
    if let Some(error) = fit.error() {
        return Err(error.into());
    }
    // It is for the estimate alone, which has a figure of its own where the device has no memory left for this.
    let bus = device.bus_bandwidth().ok().flatten();
    let _ = writeln!(std::io::stderr(), "[{}]", host_layers(&fit, file.model_graph().config.layers, bus));
    Ok(LoadOptions { host_layers: HostLayers::Last(fit.memory.host_layers), ..options })
}

/// What there is to say of a model with layers in the host's memory. The bus delivers `bus` bytes per second, if that was
/// measured.
fn host_layers(fit: &Fit, layers: usize, bus: Option<f64>) -> String {
    let Memory { host, host_layers, .. } = fit.memory;
    if host == 0 {
        return "no layer is read from the host's memory over a bus".into();
    }
    let placed = format!("{host_layers} of {layers} layers, {}, are in the host's memory", bytes(host));
    match (fit.speed, bus) {
        (Some(speed), Some(bus)) => {
            format!("{placed}; {}", describe(&speed.at_bus((bus / 1e6) as u32), "measured"))
        }
        (Some(speed), None) => format!("{placed}; {}", describe(&speed, "assumed")),
        (None, _) => placed,
    }
}

/// Shows how far `load` is while it runs. Draws to standard error, and nothing if that is no terminal.
pub fn with_bar<T>(load: impl FnOnce(&mut dyn FnMut(Progress)) -> T) -> T {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:18} {wide_bar} {bytes}/{total_bytes}") {
        bar.set_style(style);
    }
    let loaded = load(&mut |progress| match progress {
        Progress::Upload { done, total } => {
            bar.set_message("loading weights");
            bar.set_length(total);
            bar.set_position(done);
        }
        Progress::Compile { graph } => bar.set_message(format!("compiling {graph}")),
    });
    bar.finish_and_clear();
    loaded
}
