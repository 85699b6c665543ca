//! Key-value caches of attention, with the names of `candle_nn::kv_cache`.
//!
//! What is appended is written in place. Values that a cache gave earlier do not change: while one is held, the next append
//! copies the cache first.

use tallow_ir::Dim;

use crate::error::Result;
use crate::shape::Extent;
use crate::state::State;
use crate::tensor::Tensor;

/// Keys or values along one axis, of which there are more after each append.
#[derive(Debug)]
pub struct Cache {
    all_data: Option<State>,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl Clone for Cache {
    /// A cache of its own with the same content.
    fn clone(&self) -> Cache {
        Cache { all_data: self.all_data.as_ref().map(State::copy), ..*self }
    }
}

impl Cache {
    /// An empty cache along axis `dim`, with room for `max_seq_len` entries; it grows by as many when it is full.
    pub fn new(dim: usize, max_seq_len: usize) -> Cache {
        Cache { all_data: None, dim, current_seq_len: 0, grow_by: max_seq_len, max_seq_len }
    }

    /// The axis along which it grows.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How many entries it holds.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// How many entries it has room for.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// All that it has room for, once something was appended.
    pub fn all_data(&self) -> &Option<State> {
        &self.all_data
    }

    /// The entries that it holds.
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        match &self.all_data {
            None => Ok(None),
            Some(all) => all.read()?.narrow(self.dim, 0, self.current_seq_len).map(Some),
        }
    }

    /// Forgets all entries, and gives the memory back.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.all_data = None;
    }

    /// Appends the entries of `src`; the first append fixes element type and other extents.
    ///
    /// # Errors
    /// When `src` does not fit what is there, or its extent is symbolic: see [`Cache::append_at`].
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        let seq_len = src.const_dim(self.dim)?;
        let state = self.room(src)?;
        let needed = self.current_seq_len + seq_len;
        let state = match needed > self.max_seq_len && self.grow_by > 0 {
            false => state,
            true => {
                let more = (needed - self.max_seq_len).next_multiple_of(self.grow_by);
                let mut extents = src.sym_dims().to_vec();
                extents[self.dim] = more.into();
                let zeros = Tensor::zeros(extents, src.dtype(), src.device())?;
                let grown = State::new(&Tensor::cat(&[&state.read()?, &zeros], self.dim)?)?;
                self.max_seq_len += more;
                self.all_data.insert(grown).clone()
            }
        };
        state.slice_set(src, self.dim, self.current_seq_len)?;
        self.current_seq_len = needed;
        Ok(())
    }

    /// Writes the entries of `src` from `offset` on and returns all entries up to their end.
    ///
    /// This is for functions that [`crate::compile`] calls, where the offset of each run is a symbol, as the number of
    /// entries may be. The cache does not count them: [`Cache::current_seq_len`] stays as it is.
    ///
    /// # Errors
    /// When `src` does not fit what is there. A run fails where it reaches beyond [`Cache::max_seq_len`].
    pub fn append_at(&mut self, src: &Tensor, offset: impl Extent) -> Result<Tensor> {
        let state = self.room(src)?;
        let offset = offset.extent();
        let end: Dim = match src.sym_dims().get(self.dim) {
            Some(len) => &offset + len,
            None => offset.clone(),
        };
        state.slice_set(src, self.dim, offset)?;
        state.read()?.narrow(self.dim, 0, end)
    }

    /// The state, made for tensors like `src` where there is none.
    fn room(&mut self, src: &Tensor) -> Result<State> {
        if let Some(state) = &self.all_data {
            return Ok(state.clone());
        }
        let mut extents = src.sym_dims().to_vec();
        src.normalize_axis(self.dim as i64)?;
        extents[self.dim] = self.max_seq_len.into();
        let state = State::zeros(extents, src.dtype(), src.device())?;
        Ok(self.all_data.insert(state).clone())
    }
}

/// The keys and the values of one attention layer.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// An empty cache along axis `dim`, with room for `max_seq_len` entries; it grows by as many when it is full.
    pub fn new(dim: usize, max_seq_len: usize) -> KvCache {
        KvCache { k: Cache::new(dim, max_seq_len), v: Cache::new(dim, max_seq_len) }
    }

    /// The keys.
    pub fn k_cache(&self) -> &Cache {
        &self.k
    }

    /// The values.
    pub fn v_cache(&self) -> &Cache {
        &self.v
    }

    /// The keys.
    pub fn k_cache_mut(&mut self) -> &mut Cache {
        &mut self.k
    }

    /// The values.
    pub fn v_cache_mut(&mut self) -> &mut Cache {
        &mut self.v
    }

    /// The keys that it holds.
    ///
    /// # Errors
    /// As [`Cache::current_data`].
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// The values that it holds.
    ///
    /// # Errors
    /// As [`Cache::current_data`].
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends keys and values, and returns all that it then holds.
    ///
    /// # Errors
    /// As [`Cache::append`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.k.append(k)?;
        self.v.append(v)?;
        let all = |cache: &Cache, like: &Tensor| match cache.current_data()? {
            Some(all) => Ok(all),
            None => like.narrow(cache.dim, 0, 0),
        };
        Ok((all(&self.k, k)?, all(&self.v, v)?))
    }

    /// Writes keys and values from `offset` on, and returns all up to their end; see [`Cache::append_at`].
    ///
    /// # Errors
    /// As there.
    pub fn append_at(&mut self, k: &Tensor, v: &Tensor, offset: impl Extent) -> Result<(Tensor, Tensor)> {
        Ok((self.k.append_at(k, &offset)?, self.v.append_at(v, &offset)?))
    }

    /// How many entries it holds.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Forgets all entries.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
