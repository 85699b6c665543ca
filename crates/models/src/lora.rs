//! LoRA adapters (Hu et al., arXiv 2106.09685) in llama.cpp's file format.
//!
//! For a weight `W: [outputs, inputs]` an adapter has `A: [rank, inputs]` and `B: [outputs, rank]`. The product
//! `x W^T` becomes `x W^T + scale (x A^T) B^T`, where `scale` is `alpha / rank` times what the user asks for. A file
//! holds them as `NAME.lora_a` and `NAME.lora_b`, with rows in the order of the model file's.

use std::path::Path;

use indexmap::IndexMap;
use tallow_gguf::{
    Format, GgufError, GgufFile, GgufWriter, Metadata, TensorInfo, TensorSpec, Value, optional,
};

use crate::error::{LoraError, Result};

/// Ends the name of `A`.
pub(crate) const A: &str = ".lora_a";
/// Ends the name of `B`.
pub(crate) const B: &str = ".lora_b";
/// The parts of a layer whose weights may have adapters; `output.weight` may, too.
const PARTS: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// An adapter file that was read and checked. Its tensors are only mapped.
#[derive(Debug)]
pub struct LoraAdapter {
    file: GgufFile,
    architecture: String,
    alpha: f32,
    /// By name of the weight that is adapted.
    ranks: IndexMap<String, usize>,
}

impl LoraAdapter {
    /// Reads an adapter.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is no LoRA adapter; the message says which.
    pub fn open(path: impl AsRef<Path>) -> Result<LoraAdapter> {
        LoraAdapter::new(GgufFile::open(path)?)
    }

    /// As [`LoraAdapter::open`], of a file that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn new(file: GgufFile) -> Result<LoraAdapter> {
        let metadata = file.metadata();
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found = optional(metadata.get_str(key))?.unwrap_or("missing");
            if found != expected {
                return Err(LoraError::NotAnAdapter(format!("{key} is {found}, not {expected}")).into());
            }
        }
        if metadata.contains("adapter.alora.invocation_tokens") {
            let why = "it is switched on by tokens (aLoRA), which is not supported";
            return Err(LoraError::NotAnAdapter(why.into()).into());
        }
        let architecture = metadata.get_str("general.architecture")?.to_owned();
        let alpha = optional(metadata.get_f32("adapter.lora.alpha"))?.unwrap_or(0.0);
        if !alpha.is_finite() {
            return Err(LoraError::NotAnAdapter(format!("adapter.lora.alpha is {alpha}")).into());
        }
        let mut ranks = IndexMap::new();
        for tensor in file.tensors() {
            let wrong = |why: String| LoraError::Tensor { tensor: tensor.name.clone(), why };
            if let Some(name) = tensor.name.strip_suffix(A) {
                ranks.insert(name.to_owned(), rank(&file, name)?);
            } else if let Some(name) = tensor.name.strip_suffix(B) {
                // Its partner is looked at above, if there is one.
                file.tensor(&format!("{name}{A}")).ok_or_else(|| wrong(format!("has no {name}{A}")))?;
            } else {
                return Err(wrong(format!("is neither a {A} nor a {B}")).into());
            }
        }
        if ranks.is_empty() {
            return Err(LoraError::NotAnAdapter("it has no tensors".into()).into());
        }
        Ok(LoraAdapter { architecture, alpha, ranks, file })
    }

    /// What scales the products together with the rank; 0 if the file leaves it out.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// The weights that are adapted, and the rank of each.
    pub fn ranks(&self) -> impl Iterator<Item = (&str, usize)> {
        self.ranks.iter().map(|(name, rank)| (name.as_str(), *rank))
    }

    /// The factor of a weight's products: `alpha / rank`, or 1 without an alpha.
    pub fn scale(&self, weight: &str) -> f32 {
        match self.ranks.get(weight) {
            Some(rank) if self.alpha != 0.0 => self.alpha / *rank as f32,
            Some(_) | None => 1.0,
        }
    }

    /// Checks that the adapter is for a model like this.
    ///
    /// # Errors
    /// When the architecture is another one, or a tensor has no partner of the right shape in the model.
    pub fn check(&self, model: &GgufFile) -> Result<()> {
        let architecture = model.metadata().get_str("general.architecture")?;
        if architecture != self.architecture {
            let (adapter, model) = (self.architecture.clone(), architecture.to_owned());
            return Err(LoraError::Architecture { adapter, model }.into());
        }
        for name in self.ranks.keys() {
            let wrong = |why| LoraError::Tensor { tensor: format!("{name}{A}"), why };
            let Some(weight) = model.tensor(name).filter(|_| is_adaptable(name)) else {
                return Err(wrong("adapts no weight of the model that can have an adapter".into()).into());
            };
            let (a, b) = (self.shape(name, A), self.shape(name, B));
            if weight.shape.len() != 2 || weight.shape[1] != a[1] || weight.shape[0] != b[0] {
                let why = format!(
                    "of shape {a:?} and {name}{B} of shape {b:?} do not fit the model's {name} of shape {:?}",
                    weight.shape
                );
                return Err(wrong(why).into());
            }
        }
        Ok(())
    }

    /// The shape of a factor; both were checked to be matrices.
    fn shape(&self, weight: &str, which: &str) -> [usize; 2] {
        let info = self.file.tensor(&format!("{weight}{which}"));
        info.and_then(|info| info.shape.clone().try_into().ok()).unwrap_or_default()
    }

    /// `scale * alpha / rank * B A`, what merging adds to a weight; row-major, of the weight's shape.
    ///
    /// # Errors
    /// When the adapter has nothing for this weight.
    pub fn update(&self, weight: &str, scale: f32) -> Result<Vec<f32>, GgufError> {
        let (a, b) = (self.values(weight, A)?, self.values(weight, B)?);
        let ([rank, inputs], [outputs, _]) = (self.shape(weight, A), self.shape(weight, B));
        let factor = f64::from(scale) * f64::from(self.scale(weight));
        let mut sums = vec![0f64; inputs];
        let mut update = Vec::with_capacity(outputs * inputs);
        for row in b.chunks_exact(rank) {
            sums.fill(0.0);
            for (b, a) in row.iter().zip(a.chunks_exact(inputs)) {
                sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += f64::from(*b) * f64::from(*a));
            }
            update.extend(sums.iter().map(|sum| (factor * sum) as f32));
        }
        Ok(update)
    }

    fn values(&self, weight: &str, which: &str) -> Result<Vec<f32>, GgufError> {
        let info = self.file.require(&format!("{weight}{which}"))?;
        let mut values = vec![0.0; info.elements()];
        tallow_quant::dequantize(info.format()?, self.file.tensor_data(info)?, &mut values)
            .map_err(|source| GgufError::Quant { tensor: info.name.clone(), source })?;
        Ok(values)
    }

    /// A tensor of the file by its whole name, and its data.
    pub(crate) fn data(&self, tensor: &str) -> Result<(&TensorInfo, &[u8])> {
        let info = self.file.require(tensor)?;
        Ok((info, self.file.tensor_data(info)?))
    }
}

/// Whether the graphs multiply by this weight, and by nothing else of it.
fn is_adaptable(name: &str) -> bool {
    let part = |name: &str| {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let part = part.strip_suffix(".weight")?;
        Some(layer.parse::<usize>().is_ok() && PARTS.contains(&part))
    };
    name == "output.weight" || part(name) == Some(true)
}

/// The rank of a pair, of which the file has `A`.
fn rank(file: &GgufFile, weight: &str) -> Result<usize> {
    let a = file.require(&format!("{weight}{A}"))?;
    let wrong = |why| LoraError::Tensor { tensor: a.name.clone(), why };
    let b = file.tensor(&format!("{weight}{B}")).ok_or_else(|| wrong(format!("has no {weight}{B}")))?;
    a.format()?;
    b.format()?;
    match (a.shape.as_slice(), b.shape.as_slice()) {
        ([rank, inputs], [outputs, columns])
            if rank == columns && [rank, inputs, outputs].iter().all(|extent| **extent > 0) =>
        {
            Ok(*rank)
        }
        (a, b) => Err(wrong(format!("of shape {a:?} and {weight}{B} of shape {b:?} are no pair")).into()),
    }
}

/// The factors of one weight, to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// The weight's name in the model file, such as `blk.0.attn_q.weight`.
    pub weight: String,
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// `A: [rank, inputs]`, row-major.
    pub a: Vec<f32>,
    /// `B: [outputs, rank]`, row-major.
    pub b: Vec<f32>,
}

/// Writes an adapter file with tensors of a plain format. `architecture` is the model's, `name` the adapter's own.
///
/// # Errors
/// When a pair's values are no matrices of its rank, or writing fails.
pub fn write_adapter(
    out: &mut dyn std::io::Write,
    architecture: &str,
    name: &str,
    alpha: f32,
    format: Format,
    pairs: &[LoraPair],
) -> Result<(), GgufError> {
    let mut metadata = Metadata::new();
    let texts = [
        ("general.architecture", architecture),
        ("general.type", "adapter"),
        ("general.name", name),
        ("adapter.type", "lora"),
    ];
    for (key, text) in texts {
        metadata.insert(key, Value::String(text.into()));
    }
    metadata.insert("adapter.lora.alpha", Value::F32(alpha));
    let file_type = match format {
        Format::F32 => Some(0),
        Format::F16 => Some(1),
        Format::BF16 => Some(32),
        _ => None,
    };
    if let Some(number) = file_type {
        metadata.insert("general.file_type", Value::U32(number));
    }
    let parts = |pair: &LoraPair| {
        let per = |values: &[f32]| values.len() / pair.rank.max(1);
        let (a, b) = (vec![pair.rank, per(&pair.a)], vec![per(&pair.b), pair.rank]);
        [(A, a), (B, b)].map(|(end, shape)| TensorSpec {
            name: format!("{}{end}", pair.weight),
            shape,
            format,
        })
    };
    let specs = pairs.iter().flat_map(parts).collect();
    let mut writer = GgufWriter::create(out, &metadata, specs)?;
    for pair in pairs {
        for (end, values) in [(A, &pair.a), (B, &pair.b)] {
            let name = format!("{}{end}", pair.weight);
            let bytes = tallow_quant::quantize(format, values)
                .map_err(|source| GgufError::Quant { tensor: name.clone(), source })?;
            writer.tensor(&name, &bytes)?;
        }
    }
    writer.finish()?;
    Ok(())
}
