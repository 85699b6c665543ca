//! Whether a model fits a device, and the memory that it takes: `--dry-run`, and a part of `inspect`.

use std::io::Write;

use serde::Serialize;
use serde_json::json;
use tallow::Device;
use tallow::caps::{self, DeviceCaps};
use tallow_models::in_flight::MAX_IN_FLIGHT;
use tallow_models::{Advice, Fit, LoadOptions, ModelFile, Speed};

use crate::device::{available_memory, choose, choose_for, total_memory};
use crate::error::Result;

/// Where a model would run.
pub struct Target {
    /// The device's name.
    pub name: String,
    /// What it can do; `None` for the interpreter.
    pub caps: Option<DeviceCaps>,
    /// Its memory in bytes, where that is known.
    pub memory: Option<u64>,
    /// What of it this program can have now, where that is known.
    pub free: Option<u64>,
    /// What it can have of the host's, where that is known.
    pub host_free: Option<u64>,
}

impl Target {
    /// The device that `--device` names, which may be a profile; else that which `generate` would take for the model, which
    /// tries them out where there is a choice.
    fn for_model(requested: Option<&str>, file: &ModelFile, options: &LoadOptions) -> Result<Target> {
        match requested {
            Some(_) => Target::of(requested),
            None => Ok(Target::on(&choose_for(None, file, options)?.device)),
        }
    }

    /// The device that `--device` names, which may be a profile; else the best Vulkan device, or the CPU.
    pub fn of(requested: Option<&str>) -> Result<Target> {
        if let Some((name, caps)) = requested.and_then(|name| Some((name, caps::profile(name)?))) {
            return Ok(Target {
                name: format!("{name} (a profile)"),
                caps: Some(caps),
                memory: None,
                free: None,
                host_free: None,
            });
        }
        let device = match requested {
            Some(_) => choose(requested)?,
            // Without the warning that running here would be slow, as nothing is run.
            None => Device::best_vulkan().unwrap_or(Device::Cpu),
        };
        Ok(Target::on(&device))
    }

    fn on(device: &Device) -> Target {
        let available = Some(available_memory());
        let (memory, free) = match device.is_cpu() {
            true => (Some(total_memory()), available),
            false => (device.memory_bytes(), device.free_memory()),
        };
        let (name, caps) = (device.name(), device.caps().cloned());
        Target { name, caps, memory, free, host_free: available }
    }
}

/// The memory that the loaded model takes, in bytes.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    context: usize,
    cache_type_k: String,
    cache_type_v: String,
    weight_bytes: u64,
    /// The last layers whose weights are in the host's memory, and their bytes, which are a part of the weights'.
    host_layers: usize,
    host_bytes: u64,
    cache_bytes: u64,
    /// `None` on the interpreter, as are the next ones.
    prefill_arena_bytes: Option<u64>,
    arena_bytes: Option<u64>,
    other_bytes: u64,
    total_bytes: u64,
    /// What the model may take; `None` where it is not known.
    available_bytes: Option<u64>,
    /// `None` where that is not known.
    fits: Option<bool>,
    /// The largest context that fits, where the one above does not and a smaller one does.
    context_that_fits: Option<usize>,
    /// The fewest layers in the host's memory with which the model fits, where it does not.
    host_layers_that_fit: Option<usize>,
    /// How fast the model decodes at most, by an estimate; `None` where there is none.
    estimated_tokens_per_s: Option<f64>,
    #[serde(skip)]
    speed: Option<Speed>,
    #[serde(skip)]
    recurrent: bool,
    /// Why the model cannot be loaded, if it cannot.
    #[serde(skip)]
    problem: Option<String>,
}

impl MemoryReport {
    /// What there is to say of a model with these options, whose layers may be recurrent.
    pub fn new(fit: &Fit, options: &LoadOptions, recurrent: bool) -> MemoryReport {
        let problem = fit.error();
        let memory = &fit.memory;
        let context_that_fits = match fit.excess.map(|excess| excess.advice) {
            Some(Advice::Context(context)) => Some(context),
            Some(Advice::Format(_) | Advice::Nothing) | None => None,
        };
        MemoryReport {
            context: memory.context,
            cache_type_k: options.cache.keys.to_string(),
            cache_type_v: options.cache.values.to_string(),
            weight_bytes: memory.weights,
            host_layers: memory.host_layers,
            host_bytes: memory.host,
            cache_bytes: memory.cache,
            prefill_arena_bytes: memory.arenas.map(|arenas| arenas.prefill),
            arena_bytes: memory.arenas.map(|arenas| arenas.decode),
            other_bytes: memory.other,
            total_bytes: memory.total(),
            available_bytes: fit.free,
            fits: fit.free.map(|_| problem.is_none()),
            context_that_fits,
            host_layers_that_fit: fit.excess.and_then(|excess| excess.host).map(|host| host.layers),
            estimated_tokens_per_s: fit.speed.map(|speed| speed.tokens_per_s()),
            speed: fit.speed,
            recurrent,
            problem: problem.map(|error| error.to_string()),
        }
    }

    /// Why the model cannot be loaded, if it does not fit.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Prints it as lines.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "weights          {}", bytes(self.weight_bytes))?;
        match (self.host_layers, self.host_bytes) {
            (0, _) => {}
            (layers, 0) => {
                writeln!(out, "host layers      {layers}, where the others are: there is one memory")?
            }
            (layers, host) => writeln!(out, "host layers      {layers}, {} of the weights", bytes(host))?,
        }
        let (keys, values) = (&self.cache_type_k, &self.cache_type_v);
        let what = format!("{} tokens, keys {keys}, values {values}", self.context);
        match self.recurrent {
            // States have the same size after any number of tokens, and are f32.
            true => writeln!(out, "layer states     {}", bytes(self.cache_bytes))?,
            false => writeln!(out, "key-value cache  {}, {what}", bytes(self.cache_bytes))?,
        }
        match (self.prefill_arena_bytes, self.arena_bytes) {
            // An encoder has one step, and no cache.
            (Some(arena), Some(0)) => {
                writeln!(out, "arena            {}", bytes(arena))?;
                writeln!(out, "inputs, outputs  {}", bytes(self.other_bytes))?;
            }
            (Some(prefill), Some(decode)) => {
                writeln!(out, "prefill arena    {}", bytes(prefill))?;
                let more = format!("each step in flight has one, at most {MAX_IN_FLIGHT} do");
                writeln!(out, "decode arena     {}; {more}", bytes(decode))?;
                writeln!(out, "inputs, outputs  {}", bytes(self.other_bytes))?;
            }
            _ => {
                writeln!(out, "unpacked to f32  {}", bytes(self.other_bytes))?;
                writeln!(out, "arenas           none: the interpreter allocates each value as it goes")?;
            }
        }
        writeln!(out, "memory           {}", bytes(self.total_bytes - self.host_bytes))?;
        if let Some(available) = self.available_bytes {
            writeln!(out, "available        {}", bytes(available))?;
        }
        if let Some(speed) = &self.speed {
            writeln!(out, "decode speed     {}", describe(speed, "assumed"))?;
        }
        Ok(())
    }
}

/// Prints the memory that a model takes with these options, and whether it fits. Nothing is loaded.
///
/// # Errors
/// When it does not fit, or the options do not fit the model.
pub fn dry_run(file: &ModelFile, device: Option<&str>, options: &LoadOptions, as_json: bool) -> Result<()> {
    let target = Target::for_model(device, file, options)?;
    let options = &LoadOptions { host_memory: target.host_free, ..*options };
    let fit = file.fit(target.caps.as_ref(), options, target.free)?;
    let recurrent = file.model_graph().config.architecture.is_recurrent();
    let report = MemoryReport::new(&fit, options, recurrent);
    let mut out = std::io::stdout().lock();
    if as_json {
        let object = json!({
            "device": target.name,
            "device_memory_bytes": target.memory,
            "device_free_bytes": target.free,
            "host_free_bytes": target.host_free,
            "memory": report,
        });
        writeln!(out, "{object}")?;
    } else {
        let has = target.memory.map_or(String::new(), |has| format!(", {}", bytes(has)));
        writeln!(out, "device           {}{has}", target.name)?;
        report.print(&mut out)?;
        match report.fits {
            Some(true) => writeln!(out, "fits: yes")?,
            Some(false) => writeln!(out, "fits: no")?,
            None => writeln!(out, "fits: not known, as the device's memory is not (--memory SIZE)")?,
        }
    }
    out.flush()?;
    match fit.error() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// How fast a model decodes, and what of that is an estimate. How the rate of the bus is known is `known`.
pub fn describe(speed: &Speed, known: &str) -> String {
    let Speed { device_bytes, host_bytes, device_gb_per_s, bus_mb_per_s, kernels } = *speed;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let mut text = format!("at most about {:.1} tokens/s, an estimate: a token reads", speed.tokens_per_s());
    text += &format!(" {:.2} GB of weights at {device_gb_per_s} GB/s", gb(device_bytes));
    if host_bytes > 0 {
        let bus = f64::from(bus_mb_per_s) / 1e3;
        text += &format!(" and {:.2} GB over the bus at {bus:.1} GB/s ({known})", gb(host_bytes));
    }
    text + &format!(", in {kernels} kernels")
}

/// Bytes, and how many that is in the unit that suits them.
pub fn bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{bytes} bytes ({:.1} {unit})", bytes as f64 / f64::from(1 << bits)),
        None => format!("{bytes} bytes"),
    }
}
