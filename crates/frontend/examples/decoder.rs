//! A language model written with tensors: a decoder of the Llama family read from a GGUF file, with a key-value cache that
//! stays on the device. The chosen token of a step is the input of the next one without being read by the host.
//!
//! ```sh
//! cargo run -p tallow --example decoder
//! ```

use std::error::Error;
use std::io::Write;
use std::path::Path;

use tallow::nn::{AttentionOptions, attention, kv_cache::KvCache, ops::rms_norm, rotary_emb::rope_i};
use tallow::{D, DType, Device, Dim, Format, Function, Input, Result, Symbol, Tensor, compile};
use tallow_gguf::{GgufFile, Tokenizer};

const MODEL: &str = "models/storyteller-main-Q4_K_M.gguf";
const PROMPT: &str = "Once upon a time there was a";
const CONTEXT: usize = 256;
const TOKENS: usize = 40;

/// The file's tensors, and the numbers of the architecture.
struct Model {
    file: GgufFile,
    device: Device,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    epsilon: f64,
    /// Cosines and sines of the angles of each position: `(context, pairs)`.
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    fn open(path: &Path, device: &Device) -> std::result::Result<Model, Box<dyn Error>> {
        let file = GgufFile::open(path)?;
        let number = |key: &str| file.metadata().get_u32(&format!("llama.{key}")).map(|n| n as usize);
        let float = |key: &str| file.metadata().get_f32(&format!("llama.{key}")).map(f64::from);
        let (layers, heads) = (number("block_count")?, number("attention.head_count")?);
        let (kv_heads, width) = (number("attention.head_count_kv")?, number("embedding_length")?);
        let (epsilon, base) = (float("attention.layer_norm_rms_epsilon")?, float("rope.freq_base")?);
        // Pair `i` of a head turns by `base^(-2i/d)` a position.
        let d = width / heads;
        let frequencies: Vec<f32> =
            (0..d / 2).map(|i| base.powf(-2.0 * i as f64 / d as f64) as f32).collect();
        let positions = Tensor::arange(0f32, CONTEXT as f32, device)?.reshape((CONTEXT, 1))?;
        let angles = positions.broadcast_mul(&Tensor::from_vec(frequencies, d / 2, device)?)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        Ok(Model { file, device: device.clone(), layers, heads, kv_heads, epsilon, cos, sin })
    }

    /// A tensor of the file, on the device as its blocks lie there.
    fn weight(&self, name: &str) -> Result<Tensor> {
        let missing =
            |e: tallow_gguf::GgufError| tallow::Error::InvalidArgument { op: "weight", why: e.to_string() };
        let info = self.file.require(name).map_err(missing)?;
        let dtype = match info.format().map_err(missing)? {
            Format::F32 => DType::F32,
            Format::F16 => DType::F16,
            blocks => DType::Block(blocks),
        };
        Tensor::resident(
            self.file.tensor_data(info).map_err(missing)?,
            dtype,
            info.shape.clone(),
            &self.device,
        )
    }

    fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        x.matmul(&self.weight(name)?.dequantize()?.t()?)
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        rms_norm(x, &self.weight(name)?, self.epsilon)
    }

    /// Attention of the tokens from position `pos` on over all tokens so far, whose keys and values are in the cache.
    fn attend(&self, x: &Tensor, layer: usize, cache: &mut KvCache, pos: &Dim) -> Result<Tensor> {
        let seq = &x.sym_dims()[0];
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let x = self.norm(x, &name("attn_norm"))?;
        let heads = |part: &str, count: usize| self.linear(&x, &name(part))?.reshape((seq, count, ()));
        let (cos, sin) = (self.cos.narrow(0, pos, seq)?, self.sin.narrow(0, pos, seq)?);
        // (1, heads, seq, dim)
        let turn = |x: Tensor| rope_i(&x.transpose(0, 1)?.unsqueeze(0)?, &cos, &sin);
        let q = turn(heads("attn_q", self.heads)?)?;
        let k = turn(heads("attn_k", self.kv_heads)?)?;
        let v = heads("attn_v", self.kv_heads)?.transpose(0, 1)?.unsqueeze(0)?;
        let (k, v) = cache.append_at(&k, &v, pos)?;
        let y = attention(&q, &k, &v, &AttentionOptions::default().causal(true))?;
        self.linear(&y.squeeze(0)?.transpose(0, 1)?.reshape((seq, ()))?, &name("attn_output"))
    }

    fn feed_forward(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let x = self.norm(x, &name("ffn_norm"))?;
        let gate = self.linear(&x, &name("ffn_gate"))?.silu()?;
        self.linear(&(gate * self.linear(&x, &name("ffn_up"))?)?, &name("ffn_down"))
    }

    /// The function from `seq` tokens at position `pos` to the most likely next one.
    fn step(&self, seq: Dim, caches: &mut [KvCache]) -> Result<Function> {
        let pos = Dim::from(Symbol::new("pos", CONTEXT as u32 - 1));
        compile(&self.device, &[Input::new("tokens", DType::U32, [&seq])], |tokens| {
            let mut x = self.weight("token_embd.weight")?.dequantize()?.embedding(&tokens[0])?;
            for (layer, cache) in (0..self.layers).zip(caches) {
                x = (&x + self.attend(&x, layer, cache, &pos)?)?;
                x = (&x + self.feed_forward(&x, layer)?)?;
            }
            let last = x.flip([0])?.narrow(0, 0, 1)?;
            let logits = self.linear(&self.norm(&last, "output_norm.weight")?, "token_embd.weight")?;
            Ok(vec![logits.argmax(D::Minus1)?])
        })
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let device = Device::vulkan_if_available();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(MODEL);
    let model = Model::open(&path, &device)?;
    let tokenizer = Tokenizer::from_metadata(model.file.metadata())?;
    let mut caches = vec![KvCache::new(2, CONTEXT); model.layers];
    let prefill = model.step(Dim::from(Symbol::new("seq", CONTEXT as u32 / 2)), &mut caches)?;
    let decode = model.step(Dim::one(), &mut caches)?;

    let prompt = tokenizer.encode(PROMPT, true)?;
    let tokens = Tensor::from_vec(prompt.clone(), prompt.len(), &device)?;
    let mut all = vec![prefill.run_at(&[("pos", 0)], &[&tokens])?.remove(0)];
    for pos in prompt.len()..prompt.len() + TOKENS - 1 {
        let next = decode.run_at(&[("pos", pos)], &[&all[all.len() - 1]])?.remove(0);
        all.push(next);
    }
    let chosen = Tensor::cat(&all, 0)?.to_vec1::<u32>()?;
    writeln!(std::io::stdout(), "{PROMPT}{}", tokenizer.decode(&chosen))?;
    Ok(())
}
