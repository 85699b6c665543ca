//! Candle's own quantized models, unmodified, with their products on the device.
//!
//! `candle_core::quantized::QTensor` holds its blocks behind the trait `QuantizedType`, which anyone may implement.
//! [`Interceptor::wrap`] makes a `QTensor` whose blocks are resident on the device and whose products run there, for
//! `QMatMul::from_qtensor` and every model that is built of `QTensor`s.
//!
//! What it relies on, besides that trait: Candle 0.11 multiplies by some formats with kernels of its own that read the
//! blocks where `as_ptr` points and never call the trait (`repack::try_matmul_f32`, by what `dtype` says: on x86-64
//! Q4K, Q6K and Q8_0, on aarch64 more). So a wrapped tensor says that it is of a format that is not among them, and
//! has no bytes to read; [`Interceptor::matmuls`] counts the products, and this crate's tests check that none is missed.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::quantized::{GgmlDType, QStorage, QTensor, QuantizedType, ggml_file, gguf_file};
use candle_core::{CpuStorage, Result};
use half::f16;
use tallow::Device;

use crate::dtype::weight_dtype;
use crate::error::{fail, wrap};
use crate::qmatmul::{resident_weight, times_transposed};
use crate::rows::RowOp;

/// What wrapped tensors say that they are: a format without a kernel of Candle's own, in no version of 0.11 and on no
/// processor, and none of those that `QMatMul::from_qtensor` dequantizes at once.
const SAID: GgmlDType = GgmlDType::Q5_1;

/// Puts quantized tensors on a device and counts the products with them.
#[derive(Clone, Debug)]
pub struct Interceptor {
    device: Device,
    matmuls: Arc<AtomicUsize>,
}

impl Interceptor {
    /// An interceptor for a device, mostly [`crate::device`].
    pub fn new(device: &Device) -> Interceptor {
        Interceptor { device: device.clone(), matmuls: Arc::default() }
    }

    /// Products that ran on the device so far, of all tensors that this interceptor wrapped.
    pub fn matmuls(&self) -> usize {
        self.matmuls.load(Ordering::Relaxed)
    }

    /// A tensor of the same values and shape whose products run on the device. It says to be of another format, and
    /// gives no bytes (`data` is empty).
    ///
    /// # Errors
    /// When `weight` is no matrix, is wrapped already, or the device's memory does not suffice.
    pub fn wrap(&self, weight: &QTensor) -> Result<QTensor> {
        let (rows, width) = weight.shape().dims2()?;
        let bytes = weight.data()?.into_owned();
        let dtype = weight_dtype(weight.dtype());
        let matrix = resident_weight(weight, &self.device)?;
        let product = RowOp::new("qmatmul", 1, &self.device, move |x| times_transposed(x, &matrix));
        let resident = ResidentWeight { product, dtype, bytes, rows, width, matmuls: self.matmuls.clone() };
        QTensor::new(QStorage::Cpu(Box::new(resident)), weight.shape().clone())
    }

    /// The content of a GGUF file of the `llama` architecture as that of an older GGML file, with all matrices wrapped:
    /// what `quantized_llama::ModelWeights::from_ggml` of `candle-transformers` takes. (Its `from_gguf` reads the
    /// tensors itself and leaves nothing to wrap.) The second argument of `from_ggml` is returned beside it.
    ///
    /// # Errors
    /// When the file asks for what `from_ggml` cannot know: another base of rope than 10000 or another epsilon than
    /// 1e-5; when a tensor is missing; or when the device's memory does not suffice.
    pub fn ggml_content<R: Read + Seek>(
        &self,
        content: &gguf_file::Content,
        reader: &mut R,
    ) -> Result<(ggml_file::Content, usize)> {
        let number = |key: &str| match content.metadata.get(key) {
            Some(value) => value.to_u32(),
            None => fail(format!("cannot find {key} in metadata")),
        };
        let float = |key: &str, default: f32| content.metadata.get(key).map_or(Ok(default), |v| v.to_f32());
        let (base, epsilon) =
            (float("llama.rope.freq_base", 10000.0)?, float("llama.attention.layer_norm_rms_epsilon", 1e-5)?);
        if base != 10000.0 || epsilon != 1e-5 {
            return fail(format!(
                "from_ggml takes rope's base as 10000 and epsilon as 1e-5, not {base} and {epsilon}"
            ));
        }
        let heads = number("llama.attention.head_count")?;
        let kv_heads = number("llama.attention.head_count_kv")?;
        let layers = number("llama.block_count")?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return fail(format!("{heads} heads of {kv_heads} key heads"));
        }
        let cpu = &candle_core::Device::Cpu;
        let mut tensors = HashMap::new();
        let mut take = |from: &str, to: String, matrix: bool| -> Result<()> {
            let tensor = content.tensor(reader, from, cpu)?;
            tensors.insert(to, if matrix { self.wrap(&tensor)? } else { tensor });
            Ok(())
        };
        take("token_embd.weight", "tok_embeddings.weight".into(), false)?;
        take("output_norm.weight", "norm.weight".into(), false)?;
        let has_output = content.tensor_infos.contains_key("output.weight");
        take(if has_output { "output.weight" } else { "token_embd.weight" }, "output.weight".into(), true)?;
        for layer in 0..layers {
            for (from, to, matrix) in [
                ("attn_q", "attention.wq", true),
                ("attn_k", "attention.wk", true),
                ("attn_v", "attention.wv", true),
                ("attn_output", "attention.wo", true),
                ("ffn_gate", "feed_forward.w1", true),
                ("ffn_down", "feed_forward.w2", true),
                ("ffn_up", "feed_forward.w3", true),
                ("attn_norm", "attention_norm", false),
                ("ffn_norm", "ffn_norm", false),
            ] {
                take(&format!("blk.{layer}.{from}.weight"), format!("layers.{layer}.{to}.weight"), matrix)?;
            }
        }
        let hparams = ggml_file::HParams {
            n_vocab: content.tensor_infos.get("token_embd.weight").map_or(0, |t| t.shape.dims()[0] as u32),
            n_embd: number("llama.embedding_length")?,
            n_mult: 0,
            n_head: heads,
            n_layer: layers,
            n_rot: number("llama.rope.dimension_count").unwrap_or(0),
            ftype: 0,
        };
        let content = ggml_file::Content {
            magic: ggml_file::VersionedMagic::GgjtV3,
            hparams,
            vocab: ggml_file::Vocab { token_score_pairs: Vec::new() },
            tensors,
            device: cpu.clone(),
        };
        Ok((content, (heads / kv_heads) as usize))
    }
}

/// Blocks whose products run on the device.
struct ResidentWeight {
    product: RowOp,
    dtype: tallow::DType,
    /// The blocks once more, for what Candle computes itself: rows of an embedding, and all values.
    bytes: Vec<u8>,
    rows: usize,
    width: usize,
    matmuls: Arc<AtomicUsize>,
}

impl ResidentWeight {
    /// The values of some blocks.
    fn values(&self, bytes: &[u8], count: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; count];
        let format = match self.dtype {
            tallow::DType::Block(format) => format,
            tallow::DType::F32 => tallow::Format::F32,
            tallow::DType::F16 => tallow::Format::F16,
            tallow::DType::BF16 => tallow::Format::BF16,
            other @ (tallow::DType::U8
            | tallow::DType::U32
            | tallow::DType::I16
            | tallow::DType::I32
            | tallow::DType::I64
            | tallow::DType::F8E4M3
            | tallow::DType::F64) => return fail(format!("weights of {other}")),
        };
        tallow_quant::dequantize(format, bytes, &mut values).map_err(wrap)?;
        Ok(values)
    }

    fn check(&self, (m, k, n): (usize, usize, usize), lhs: usize, dst: usize) -> Result<()> {
        if (k, n) == (self.width, self.rows) && lhs == m * k && dst == m * n {
            return Ok(());
        }
        fail(format!("a product of {m}x{k} and {k}x{n} with weights of {}x{}", self.rows, self.width))
    }
}

impl QuantizedType for ResidentWeight {
    fn dtype(&self) -> GgmlDType {
        SAID
    }

    fn matmul_t(&self, mkn: (usize, usize, usize), lhs: &[f32], dst: &mut [f32]) -> Result<()> {
        self.check(mkn, lhs.len(), dst.len())?;
        self.product.floats(lhs, &[mkn.0, mkn.1], dst)?;
        self.matmuls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn matmul_t_f16(&self, mkn: (usize, usize, usize), lhs: &[f16], dst: &mut [f16]) -> Result<()> {
        self.check(mkn, lhs.len(), dst.len())?;
        let wide: Vec<f32> = lhs.iter().map(|x| x.to_f32()).collect();
        let mut result = vec![0.0; dst.len()];
        self.matmul_t(mkn, &wide, &mut result)?;
        dst.iter_mut().zip(result).for_each(|(to, x)| *to = f16::from_f32(x));
        Ok(())
    }

    fn embedding(&self, ids: &[u32], rows: usize, hidden: usize) -> Result<CpuStorage> {
        if (rows, hidden) != (self.rows, self.width) {
            return fail(format!(
                "an embedding of {rows}x{hidden} of weights of {}x{}",
                self.rows, self.width
            ));
        }
        let row_bytes = self.bytes.len() / rows.max(1);
        let mut out = Vec::with_capacity(ids.len() * hidden);
        for id in ids {
            let Some(row) =
                (*id as usize).checked_mul(row_bytes).and_then(|at| self.bytes.get(at..at + row_bytes))
            else {
                return fail(format!("embedding: number {id} of a table of {rows}"));
            };
            out.extend(self.values(row, hidden)?);
        }
        Ok(CpuStorage::F32(out))
    }

    fn dequantize(&self, elem_count: usize) -> Result<CpuStorage> {
        Ok(CpuStorage::F32(self.values(&self.bytes, elem_count)?))
    }

    fn storage_size_in_bytes(&self) -> usize {
        // What `dtype` says does not describe them, so nobody gets to read them.
        0
    }

    fn as_ptr(&self) -> *const u8 {
        [].as_ptr()
    }

    fn block_size(&self) -> usize {
        // Of the true format: it is checked against the shape.
        match self.dtype {
            tallow::DType::Block(format) => format.block_elements(),
            tallow::DType::U8
            | tallow::DType::U32
            | tallow::DType::I16
            | tallow::DType::I32
            | tallow::DType::I64
            | tallow::DType::F8E4M3
            | tallow::DType::F16
            | tallow::DType::BF16
            | tallow::DType::F32
            | tallow::DType::F64 => 1,
        }
    }

    fn from_float(&mut self, _xs: &[f32]) {
        // Candle quantizes into storage that it made itself, and this is none of it.
    }

    fn from_float_imatrix(&mut self, _xs: &[f32], _imatrix_weights: &[f32], _n_per_row: usize) {}

    fn size(&self) -> usize {
        0
    }
}
