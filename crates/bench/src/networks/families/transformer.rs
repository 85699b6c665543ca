//! Layers of transformers.

use super::super::builder::{Builder, Var};
use super::super::draw::Scale;
use super::super::{Call, Conv, Unary};

/// Extents of an attention layer.
#[derive(Clone, Copy)]
struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    /// Heads of keys and values.
    groups: usize,
    dim: usize,
}

impl Heads {
    fn width(self) -> usize {
        self.heads * self.dim
    }
}

/// Draws heads, and the extents of a sequence.
fn heads(b: &mut Builder, seqs: &[usize]) -> Heads {
    let dim = b.draw.extent(&[64, 64, 96, 128], 16);
    let heads: usize = b.draw.pick(&[6, 8, 12, 16]);
    let share = b.draw.pick(&[1, 1, 2, 4]);
    let seq = b.draw.extent(seqs, 32);
    let tokens = b.batch(&[1024, 2048, 4096, 8192]);
    let batch = b.either((tokens / seq).max(1), 2);
    let groups = if heads.is_multiple_of(share) { heads / share } else { heads };
    Heads { batch, seq, heads, groups, dim }
}

/// `[batch, seq, heads * dim]` as `[batch, heads, seq, dim]`.
fn split(b: &mut Builder, x: Var, shape: [usize; 4]) -> Var {
    let split = b.reshape(x, &shape);
    b.permute(split, &[0, 2, 1, 3])
}

/// `[batch, heads, seq, dim]` as `[batch, seq, heads * dim]`.
fn join(b: &mut Builder, x: Var, h: Heads) -> Var {
    let joined = b.permute(x, &[0, 2, 1, 3]);
    b.reshape(joined, &[h.batch, h.seq, h.width()])
}

/// Self-attention with its four projections; with `rope`, queries and keys are rotated.
fn self_attention(b: &mut Builder, x: Var, h: Heads, rope: bool, causal: bool) -> Var {
    let [q, k, v] = [h.heads, h.groups, h.groups].map(|heads| {
        let projected = b.project(x, h.width(), heads * h.dim);
        split(b, projected, [h.batch, h.seq, heads, h.dim])
    });
    let (q, k) = if rope { rotated(b, q, k, h) } else { (q, k) };
    let y = b.call(Call::Attention { causal }, &[q, k, v]);
    let y = join(b, y, h);
    b.project(y, h.width(), h.width())
}

fn rotated(b: &mut Builder, q: Var, k: Var, h: Heads) -> (Var, Var) {
    let [cos, sin] = ["cos", "sin"].map(|name| b.weight(name, &[h.seq, h.dim / 2], 0.7));
    (b.call(Call::Rope, &[q, cos, sin]), b.call(Call::Rope, &[k, cos, sin]))
}

/// The feed-forward part: SwiGLU if `gated`, else two layers with GELU.
fn mlp(b: &mut Builder, x: Var, width: usize, hidden: usize, gated: bool) -> Var {
    if gated {
        let gate = b.project(x, width, hidden);
        let gate = b.unary(Unary::Silu, gate);
        let up = b.project(x, width, hidden);
        let product = b.mul(gate, up);
        return b.project(product, hidden, width);
    }
    let up = b.linear(x, width, hidden);
    let function = b.draw.pick(&[Unary::Gelu, Unary::GeluErf, Unary::Relu]);
    let up = b.unary(function, up);
    b.linear(up, hidden, width)
}

/// Attention and feed-forward, each with a norm before it and a residual connection.
fn pre_norm_block(b: &mut Builder, x: Var, h: Heads, [rms, gated, rope, causal]: [bool; 4]) -> Var {
    let normal = b.norm(x, h.width(), rms);
    let attended = self_attention(b, normal, h, rope, causal);
    let x = b.add(x, attended);
    let normal = b.norm(x, h.width(), rms);
    let hidden = if gated { h.width() * 8 / 3 / 8 * 8 } else { h.width() * 4 };
    let y = mlp(b, normal, h.width(), hidden, gated);
    b.add(x, y)
}

/// An encoder layer: norms before or after, learned positions or rotations.
pub fn encoder(b: &mut Builder) -> Vec<Var> {
    let h = heads(b, &[128, 256, 384, 512, 1024]);
    let [pre_norm, rms, gated, rope] = [(); 4].map(|()| b.draw.coin());
    let mut x = b.input("x", &[h.batch, h.seq, h.width()]);
    if !rope {
        let positions = b.weight("positions", &[h.seq, h.width()], 0.5);
        x = b.add(x, positions);
    }
    if pre_norm {
        return vec![pre_norm_block(b, x, h, [rms, gated, rope, false])];
    }
    let attended = self_attention(b, x, h, rope, false);
    let sum = b.add(x, attended);
    let x = b.norm(sum, h.width(), rms);
    let y = mlp(b, x, h.width(), h.width() * 4, gated);
    let sum = b.add(x, y);
    vec![b.norm(sum, h.width(), rms)]
}

/// A decoder layer over a prompt: causal, with rotations.
pub fn prefill(b: &mut Builder) -> Vec<Var> {
    let h = heads(b, &[512, 1024, 2048]);
    let gated = b.draw.coin();
    let x = b.input("x", &[h.batch, h.seq, h.width()]);
    vec![pre_norm_block(b, x, h, [true, gated, true, true])]
}

/// A decoder layer over one token of each sequence, with a cache of keys and values.
pub fn decode(b: &mut Builder) -> Vec<Var> {
    let dim = b.draw.extent(&[64, 128], 16);
    let heads = b.draw.pick(&[8, 16, 32]);
    let share = b.draw.pick(&[1, 2, 4, 8]);
    let batch = b.draw.extent(&[1, 1, 4, 8, 16], 4);
    let cached = b.draw.extent(&[255, 512, 1024, 2047, 4096], 64);
    let h = Heads { batch, seq: 1, heads, groups: heads / share, dim };
    let x = b.input("x", &[batch, 1, h.width()]);
    let normal = b.norm(x, h.width(), true);
    let [q, k, v] = [h.heads, h.groups, h.groups].map(|heads| {
        let projected = b.project(normal, h.width(), heads * dim);
        split(b, projected, [batch, 1, heads, dim])
    });
    let (q, k) = rotated(b, q, k, h);
    let [k, v] = [("keys", k), ("values", v)].map(|(name, new)| {
        let cache = b.input(name, &[batch, h.groups, cached, dim]);
        b.concat(&[cache, new], 2)
    });
    let y = b.call(Call::Attention { causal: false }, &[q, k, v]);
    let y = join(b, y, h);
    let y = b.project(y, h.width(), h.width());
    let x = b.add(x, y);
    let normal = b.norm(x, h.width(), true);
    let y = mlp(b, normal, h.width(), h.width() * 8 / 3 / 8 * 8, true);
    vec![b.add(x, y)]
}

/// Cross-attention of an image's tokens to those of a text, and a GEGLU layer, as in latent diffusion.
pub fn cross_attention(b: &mut Builder) -> Vec<Var> {
    let h = Heads { groups: 0, ..heads(b, &[256, 576, 1024, 4096]) };
    let h = Heads { groups: h.heads, ..h };
    let keys = b.draw.extent(&[77, 77, 128, 256], 16);
    let inner = b.draw.extent(&[512, 768, 1024], 16);
    let x = b.input("x", &[h.batch, h.seq, h.width()]);
    let context = b.input("context", &[h.batch, keys, inner]);
    let normal = b.norm(x, h.width(), false);
    let q = b.project(normal, h.width(), h.width());
    let q = split(b, q, [h.batch, h.seq, h.heads, h.dim]);
    let [k, v] = [(); 2].map(|()| {
        let projected = b.project(context, inner, h.width());
        split(b, projected, [h.batch, keys, h.heads, h.dim])
    });
    let y = b.call(Call::Attention { causal: false }, &[q, k, v]);
    let y = join(b, y, h);
    let y = b.linear(y, h.width(), h.width());
    let x = b.add(x, y);
    let normal = b.norm(x, h.width(), false);
    let hidden = h.width() * 4;
    let both = b.linear(normal, h.width(), hidden * 2);
    let [value, gate] = [0, hidden].map(|start| b.slice(both, 2, start, hidden));
    let gate = b.unary(Unary::GeluErf, gate);
    let product = b.mul(value, gate);
    let y = b.linear(product, hidden, h.width());
    vec![b.add(x, y)]
}

/// The patch embedding of a vision transformer, its class token and positions, and one block.
pub fn vit(b: &mut Builder) -> Vec<Var> {
    let (side, patch) = b.draw.pick(&[(224, 14), (224, 16), (224, 32), (256, 16), (384, 16), (384, 32)]);
    let (side, patch) = b.either((side, patch), (8, 4));
    let dim = b.draw.extent(&[64, 64, 96], 16);
    let heads = b.draw.pick(&[3, 6, 12, 16]);
    let batch = b.batch(&[4, 8, 16, 32]);
    let patches = (side / patch) * (side / patch);
    let h = Heads { batch, seq: patches + 1, heads, groups: heads, dim };
    let width = h.width();
    let image = b.input("image", &[batch, 3, side, side]);
    let kernel = b.weight("kernel", &[width, 3, patch, patch], 1.0 / (3.0f64.sqrt() * patch as f64));
    let bias = b.weight("bias", &[width], 0.1);
    let conv = Conv { stride: patch, padding: 0, groups: 1, dilation: 1 };
    let embedded = b.call(Call::Conv2d(conv), &[image, kernel, bias]);
    let flat = b.reshape(embedded, &[batch, width, patches]);
    let tokens = b.permute(flat, &[0, 2, 1]);
    let class = b.weight("class", &[1, 1, width], 1.0);
    let class = b.broadcast(class, &[batch, 1, width]);
    let tokens = b.concat(&[class, tokens], 1);
    let positions = b.weight("positions", &[1, h.seq, width], 0.5);
    let x = b.add(tokens, positions);
    vec![pre_norm_block(b, x, h, [false, false, false, false])]
}

/// A block of an MLP mixer: one layer over tokens, one over channels.
pub fn mixer(b: &mut Builder) -> Vec<Var> {
    let tokens = b.draw.extent(&[49, 196, 256, 1024], 16);
    let width = b.draw.extent(&[256, 512, 768, 1024], 16);
    let batch = b.batch(&[4, 8, 16, 32]);
    let batch = if b.scale == Scale::Full && tokens == 1024 { (batch / 4).max(1) } else { batch };
    let x = b.input("x", &[batch, tokens, width]);
    let normal = b.norm(x, width, false);
    let columns = b.permute(normal, &[0, 2, 1]);
    let mixed = mlp(b, columns, tokens, tokens * 2, false);
    let mixed = b.permute(mixed, &[0, 2, 1]);
    let x = b.add(x, mixed);
    let normal = b.norm(x, width, false);
    let y = mlp(b, normal, width, width * 4, false);
    vec![b.add(x, y)]
}
