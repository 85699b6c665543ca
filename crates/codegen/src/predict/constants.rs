//! The constants of predictions.
//!
//! All were fitted at once to the sweep on an H100 (docs/experiments/0019-predicted-times.md): least squares of the
//! logarithm of predicted over measured time, on the 406 of 805 points whose names have an even CRC-32, and rounded to
//! two digits. Each starts from an estimate, to which it stays close unless points say otherwise.
//!
//! Instructions are counted for one lane, in units of a multiply-add: a device executes half of its
//! `f32_gflops`. Microseconds are latencies of one workgroup, which an H100 and an H200 share; other devices were not
//! measured.

/// Microseconds between two barriers besides the work of the launches there: the device fills and drains. Programs of
/// one element take 5.6 to 9 us for 32 launches, of which 5.8 are [`LAUNCH_US`].
pub(super) const LEVEL_US: f64 = 3.0;

/// Microseconds of an empty dispatch among others: 0.17 on an H100, 0.16 on an H200.
pub(super) const LAUNCH_US: f64 = 0.18;

/// Constants of what computes elements or rows.
pub(super) struct Elements {
    /// Instructions of an invocation, for its position.
    pub invocation: f64,
    /// The same for each further pass over a row: a reduction across invocations, and a second loop.
    pub pass: f64,
    /// Instructions of a loaded element, of an operation, and of a stored element.
    pub load: f64,
    pub operation: f64,
    pub store: f64,
    /// More instructions of an element below 4 bytes that is loaded alone.
    pub narrow: f64,
    /// More instructions of an element selected by an index: each lane has a sector of its own.
    pub scattered: f64,
    /// More instructions of an element that is transposed through shared memory.
    pub transposed: f64,
    /// Latency of a workgroup, of each load of an invocation, and of combining partials.
    pub start_us: f64,
    pub load_us: f64,
    pub split_us: f64,
}

const NOTHING: Elements = Elements {
    invocation: 0.0,
    pass: 0.0,
    load: 0.0,
    operation: 0.0,
    store: 0.0,
    narrow: 0.0,
    scattered: 0.0,
    transposed: 0.0,
    start_us: 0.0,
    load_us: 0.0,
    split_us: 0.0,
};

pub(super) const MAP: Elements = Elements {
    invocation: 15.0,
    load: 0.91,
    operation: 1.1,
    store: 0.98,
    scattered: 47.0,
    transposed: 42.0,
    start_us: 0.67,
    load_us: 0.025,
    ..NOTHING
};

pub(super) const ROW: Elements = Elements {
    invocation: 88.0,
    pass: 95.0,
    load: 0.74,
    operation: 0.3,
    store: 0.88,
    narrow: 8.1,
    start_us: 0.54,
    load_us: 0.02,
    split_us: 5.1,
    ..NOTHING
};

pub(super) const SHORT_ROWS: Elements = Elements {
    invocation: 37.0,
    load: 0.73,
    operation: 3.0,
    store: 22.0,
    narrow: 1.7,
    start_us: 0.89,
    load_us: 0.023,
    ..NOTHING
};

pub(super) const COLUMNS: Elements = Elements {
    invocation: 42.0,
    pass: 20.0,
    load: 1.1,
    operation: 1.0,
    store: 1.0,
    narrow: 16.0,
    start_us: 3.4,
    load_us: 0.12,
    split_us: 0.88,
    ..NOTHING
};

pub(super) const SCAN: Elements = Elements {
    invocation: 39.0,
    load: 1.0,
    operation: 1.0,
    store: 1.0,
    narrow: 83.0,
    start_us: 1.7,
    load_us: 0.023,
    ..NOTHING
};

/// Constants of tiled matmuls. The products themselves take the peak rate of their instruction.
pub(super) struct Tiles {
    /// Instructions of an invocation for a K tile.
    pub step: f64,
    /// Instructions of an element of an operand's tile, by how it is loaded: the load, and the store to and the loads
    /// from shared memory.
    pub vector: f64,
    pub scalar: f64,
    pub window: f64,
    pub odd_window: f64,
    /// More instructions of a weight that is unpacked; twice as many with a codebook.
    pub unpack: f64,
    /// Instructions of an element of the result, for the square root of K slices: partials are written by all, and read
    /// by the last.
    pub result: f64,
    /// Latency of a workgroup, of a K tile, and of combining partials.
    pub start_us: f64,
    pub step_us: f64,
    pub split_us: f64,
    /// How much longer a workgroup takes alone on a core than its share of the core's instructions.
    pub alone: f64,
}

/// Workgroups of a tiled matmul that a core holds: registers allow three of 128 invocations with 160 registers.
pub(super) const RESIDENT_TILES: f64 = 3.0;

pub(super) const COOPMAT: Tiles = Tiles {
    step: 32.0,
    vector: 2.6,
    scalar: 18.0,
    window: 2.5,
    odd_window: 57.0,
    unpack: 5.8,
    result: 22.0,
    start_us: 0.071,
    step_us: 0.3,
    split_us: 4.6,
    alone: 3.0,
};

/// `odd_window` is from 3 x 3 windows of 64 channels in f32 on an H200: 97 x 127 pixels take 66 us, 128 x 96 take 48 us.
pub(super) const FMA: Tiles = Tiles {
    step: 53.0,
    vector: 7.0,
    scalar: 12.0,
    window: 5.0,
    odd_window: 33.0,
    unpack: 6.0,
    result: 25.0,
    start_us: 0.49,
    step_us: 0.14,
    split_us: 5.8,
    alone: 2.3,
};

/// Constants of products of few rows.
pub(super) struct FewRows {
    /// Instructions of an invocation, of a weight, and of a multiply-add.
    pub invocation: f64,
    pub weight: f64,
    pub product: f64,
    /// Instructions of a weight whose rows do not begin at multiples of vectors.
    pub scalar_weight: f64,
    /// More instructions of a weight of a format with a codebook.
    pub codebook: f64,
    /// Instructions of an activation that a workgroup stages.
    pub staged: f64,
    /// Latency of a workgroup, of each weight and staged activation of an invocation, and of combining partials.
    pub start_us: f64,
    pub weight_us: f64,
    pub staged_us: f64,
    pub split_us: f64,
}

pub(super) const MATVEC: FewRows = FewRows {
    invocation: 95.0,
    weight: 0.48,
    product: 3.1,
    scalar_weight: 22.0,
    codebook: 0.0,
    staged: 0.0,
    start_us: 3.7,
    weight_us: 0.076,
    staged_us: 0.0,
    split_us: 0.0,
};

/// Four products of 8 bits are one instruction.
pub(super) const STAGED_MATVEC: FewRows = FewRows {
    invocation: 84.0,
    weight: 1.4,
    product: 0.32,
    scalar_weight: 1.4,
    codebook: 7.3,
    staged: 0.5,
    start_us: 0.58,
    weight_us: 0.0086,
    staged_us: 0.61,
    split_us: 1.8,
};

/// Constants of attention by tiles of cooperative matrices.
pub(super) struct Flash {
    /// Instructions of an invocation for a tile of keys, of a score, and of an element of a key or value.
    pub step: f64,
    pub score: f64,
    pub load: f64,
    /// Share of the matrix rate that products reach, inverted.
    pub product: f64,
    /// As in [`Tiles`].
    pub start_us: f64,
    pub step_us: f64,
    pub split_us: f64,
    pub alone: f64,
}

pub(super) const FLASH: Flash = Flash {
    step: 100.0,
    score: 2.4,
    load: 0.9,
    product: 1.3,
    start_us: 9.7,
    step_us: 0.053,
    split_us: 4.6,
    alone: 2.0,
};

/// Workgroups of it that a core holds: 256 invocations with 128 registers.
pub(super) const RESIDENT_FLASH: f64 = 2.0;

/// Constants of attention by multiply-adds.
pub(super) struct Attend {
    /// Instructions of an invocation, and of an element of a key or value for each query.
    pub invocation: f64,
    pub product: f64,
    /// Latency of a workgroup, of a key, and of combining partials.
    pub start_us: f64,
    pub key_us: f64,
    pub split_us: f64,
}

pub(super) const DECODE: Attend =
    Attend { invocation: 100.0, product: 3.7, start_us: 6.9, key_us: 0.0084, split_us: 1.6 };

/// Five points of the sweep have these two, so their latencies are the estimates.
pub(super) const TILED: Attend =
    Attend { invocation: 150.0, product: 7.3, start_us: 2.0, key_us: 0.01, split_us: 3.0 };
pub(super) const PER_QUERY: Attend =
    Attend { invocation: 100.0, product: 8.8, start_us: 2.0, key_us: 0.01, split_us: 3.0 };

/// Constants of sorting and merging.
pub(super) struct Compare {
    /// Instructions of an invocation, of a loaded element, and of an element in a round of comparisons.
    pub invocation: f64,
    pub load: f64,
    pub round: f64,
    /// Latency of a workgroup, and of a round.
    pub start_us: f64,
    pub round_us: f64,
}

pub(super) const SORT: Compare =
    Compare { invocation: 200.0, load: 0.0, round: 15.0, start_us: 2.0, round_us: 0.24 };
/// An estimate: a comparison is five instructions, and its load from shared memory waits for eight cycles.
pub(super) const RANK_SORT: Compare =
    Compare { invocation: 40.0, load: 0.0, round: 5.0, start_us: 2.0, round_us: 0.005 };
pub(super) const TOP_K: Compare =
    Compare { invocation: 0.0, load: 90.0, round: 13.0, start_us: 1.9, round_us: 0.2 };
/// One point in the fitted half has a merge: all but `round` are the estimates.
pub(super) const MERGE: Compare =
    Compare { invocation: 20.0, load: 0.0, round: 43.0, start_us: 2.0, round_us: 0.3 };

/// How much longer selection takes when twice as many positions are wanted: more candidates pass.
pub(super) const TOP_K_DOUBLING: f64 = 0.11;

/// Instructions of an invocation that scatters, and of an element that is combined in memory, or in a copy in shared
/// memory.
pub(super) const SCATTER_INVOCATION: f64 = 27.0;
pub(super) const SCATTER_DIRECT: f64 = 66.0;
pub(super) const SCATTER_COPIED: f64 = 84.0;
/// Latency of its workgroup, and of each element of an invocation.
pub(super) const SCATTER_US: f64 = 0.87;
pub(super) const SCATTER_ELEMENT_US: f64 = 0.048;

/// Instructions of an indexed addition for each index that a workgroup reads, each term and each result, and the latency
/// of its workgroup and of an index of each invocation. Estimates: no point of the sweep had these kernels.
pub(super) const INDEX_ADD_INDEX: f64 = 12.0;
pub(super) const INDEX_ADD_TERM: f64 = 30.0;
pub(super) const INDEX_ADD_RESULT: f64 = 6.0;
pub(super) const INDEX_ADD_US: f64 = 2.0;
pub(super) const INDEX_ADD_STEP_US: f64 = 0.08;
/// Their workgroups that a core holds at once: each takes the shared memory that one may have.
pub(super) const RESIDENT_INDEX_ADD: f64 = 4.0;
