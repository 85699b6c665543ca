//! Latent attention (DeepSeek V2: arXiv 2405.04434, section 2.1): the cache holds one row for all heads.
//!
//! The key of a head is the product of the latent row with a matrix of the head, and a part that is rotated; its value is the
//! product with another matrix. There are two ways to compute the same:
//!
//! - The matrices move to the other side: queries are multiplied by that of the keys, and what attention gives by that
//!   of the values. Attention then has one head of keys, and reads each cached row once for all heads. For few queries.
//! - Keys and values of all cached rows are computed. Their heads are shorter than the latent row, by half or more, so
//!   that attention has tiles, and takes less than half the work. For the queries of a prompt.
//!
//! With the extents of DeepSeek V2 Lite and `q` queries, a cached row and head takes `1088 q` multiplications in the first
//! form, and `131072 + 320 q` in the second: as many from 170 queries on. With fewer the second form is the faster one, too,
//! where cooperative matrices compute it: attention of the first form has no tiles.

use tallow_ir::{Attention, DType, Dim, Op, Value};

use super::{Builder, Result, extent};
use crate::cache::CacheType;
use crate::config::Latent;

/// Most bytes of the keys of all heads, in f32: a quarter of what most GPUs bind as one buffer.
const MOST_BYTES: usize = 1 << 30;

/// What latent attention takes: of queries `[rows, heads, length]` the part that is not rotated and the one that is; the
/// latent row `[rows, 1, rank]`, and the rotated part of keys `[rows, 1, rotated]`.
#[derive(Clone, Copy, Debug)]
pub struct LatentHeads {
    /// Queries.
    pub q: [Value; 2],
    /// What the cache holds.
    pub row: [Value; 2],
}

impl Builder<'_> {
    /// Latent attention with the weights `attn_k_b: [heads, rank, plain]` and `attn_v_b: [heads, value length, rank]`. Returns
    /// `[rows, heads * value length]`.
    ///
    /// # Errors
    /// When a weight is missing, or shapes do not fit each other.
    pub fn attend_to_latent(
        &mut self,
        heads: LatentHeads,
        attention: Attention,
        latent: Latent,
    ) -> Result<Value> {
        let rows = self.latent_rows(heads.row)?;
        let mixed = if self.expands(latent) {
            self.attend_expanded(heads, rows, attention, latent)?
        } else {
            self.attend_absorbed(heads, rows, attention, latent)?
        };
        self.flat_heads(mixed)
    }

    /// Whether keys and values of all heads are computed: for a prompt, if they fit a buffer.
    fn expands(&self, latent: Latent) -> bool {
        let size = DType::F32.size().unwrap_or(4);
        let bytes = self.config.heads.saturating_mul(self.context).saturating_mul(latent.key_length * size);
        !self.rows().is(1) && bytes <= MOST_BYTES
    }

    /// Writes this run's rows into the cache and returns all that it holds then, `[1, pos + rows, rank + rotated]`.
    fn latent_rows(&mut self, [latent, rotated]: [Value; 2]) -> Result<Value> {
        let (kind, rank) = (self.cache.keys, extent(self.g.ty(latent), 2));
        if !self.has_cache || !kind.is_multiple_of_block(rank) {
            let row = self.joined(&[latent, rotated], 2)?;
            return self.through_cache("k", kind, row);
        }
        // The rotated part first: it does not wait for a norm, and the second write waits for the first.
        let width = rank + extent(self.g.ty(rotated), 2);
        let state = self.cache_rows("k", kind, width.into())?;
        let state = self.write(kind, state, rotated, rank.into())?;
        let state = self.write(kind, state, latent, Dim::zero())?;
        self.seen(kind, state, [Dim::one(), width.into()])
    }

    /// Attention to one head of keys, the latent rows, whose first elements are the values: `[rows, heads, value length]`.
    fn attend_absorbed(
        &mut self,
        heads: LatentHeads,
        rows: Value,
        attention: Attention,
        latent: Latent,
    ) -> Result<Value> {
        let [plain, rotated] = heads.q;
        let shape = self.keys_matrix(latent);
        let plain = self.by_head(plain, "attn_k_b.weight", shape)?;
        let q = self.joined(&[plain, rotated], 2)?;
        let v = self.part(rows, 2, 0, latent.rank)?;
        let mixed = self.mixed([q, rows, v], attention, None)?;
        self.by_head(mixed, "attn_v_b.weight", [self.config.heads, latent.value_length, latent.rank])
    }

    /// Attention to the keys and values of all heads: `[rows, heads, value length]`. They have the precision of the cache,
    /// f16 where that is in blocks, or f32 without a cache.
    fn attend_expanded(
        &mut self,
        heads: LatentHeads,
        rows: Value,
        attention: Attention,
        latent: Latent,
    ) -> Result<Value> {
        let (count, total) = (self.config.heads, &self.pos + &self.seq);
        let latents = self.part(rows, 2, 0, latent.rank)?;
        let rotated_length = extent(self.g.ty(rows), 2) - latent.rank;
        let rotated = self.part(rows, 2, latent.rank, rotated_length)?;
        let [latents, rotated] = [self.in_f32(latents)?, self.in_f32(rotated)?];

        let shape = self.keys_matrix(latent);
        let w = self.weight("attn_k_b.weight", &shape)?;
        let each = self.g.broadcast(latents, [count.into(), total.clone(), latent.rank.into()])?;
        let plain = self.g.add(Op::Matmul, &[each, w])?;
        let rotated = self.g.broadcast(rotated, [count.into(), total.clone(), rotated_length.into()])?;
        let k = self.joined(&[plain, rotated], 2)?;

        let w = self.weight("attn_v_b.weight", &[count, latent.value_length, latent.rank])?;
        let w = self.g.reshape(w, [count * latent.value_length, latent.rank])?;
        let w = self.g.permute(w, &[1, 0])?;
        let latents = self.g.reshape(latents, [total.clone(), latent.rank.into()])?;
        let v = self.g.add(Op::Matmul, &[latents, w])?;
        let v = self.g.reshape(v, [total, count.into(), latent.value_length.into()])?;
        let v = self.g.permute(v, &[1, 0, 2])?;

        let [k, v] = [self.in_cache_precision(k)?, self.in_cache_precision(v)?];
        let q = self.joined(&heads.q, 2)?;
        self.mixed([q, k, v], attention, None)
    }

    /// The shape of `attn_k_b`.
    fn keys_matrix(&self, latent: Latent) -> [usize; 3] {
        let c = self.config;
        [c.heads, latent.rank, latent.key_length - c.rope_dimensions]
    }

    /// Rows of the cache in f32.
    fn in_f32(&mut self, x: Value) -> Result<Value> {
        if self.g.ty(x).dtype == DType::F32 { Ok(x) } else { self.g.add(Op::Cast(DType::F32), &[x]) }
    }

    /// What is computed of rows of the cache, as precise as these are; in f32 without a cache.
    fn in_cache_precision(&mut self, x: Value) -> Result<Value> {
        match self.cache.keys {
            CacheType::F16 | CacheType::Q8_0 | CacheType::Q4_0 if self.has_cache => {
                self.g.add(Op::Cast(DType::F16), &[x])
            }
            CacheType::F32 | CacheType::F16 | CacheType::Q8_0 | CacheType::Q4_0 => Ok(x),
        }
    }

    /// The product of each head of `x: [rows, heads, inputs]` with its matrix of the weight `name: [heads, outputs,
    /// inputs]`: `[rows, heads, outputs]`.
    fn by_head(&mut self, x: Value, name: &str, shape: [usize; 3]) -> Result<Value> {
        let w = self.weight(name, &shape)?;
        let w = self.g.permute(w, &[0, 2, 1])?;
        let x = self.g.permute(x, &[1, 0, 2])?;
        let y = self.g.add(Op::Matmul, &[x, w])?;
        self.g.permute(y, &[1, 0, 2])
    }
}
