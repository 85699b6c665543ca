//! Random programs and hashing kernels for the schedule tests.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test targets, each using a part")]

use tallow_ir::schedule::{Access, Buffer, BufferKind, Dispatch, Limits, Program};

/// Limits that never bind.
pub const ROOMY: Limits = Limits { alignment: 1, max_buffer_bytes: u64::MAX };

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn buffer(program: &mut Program, name: impl Into<String>, bytes: u64, kind: BufferKind) -> usize {
    program.buffers.push(Buffer { name: name.into(), bytes, kind });
    program.buffers.len() - 1
}

/// All of a buffer.
pub fn whole(program: &Program, buffer: usize) -> Access {
    Access { buffer, start: 0, end: program.buffers[buffer].bytes }
}

pub fn part(buffer: usize, start: u64, end: u64) -> Access {
    Access { buffer, start, end }
}

/// A dispatch of whole buffers.
pub fn dispatch(program: &mut Program, name: impl Into<String>, reads: &[usize], writes: &[usize]) -> usize {
    let reads = reads.iter().map(|&buffer| whole(program, buffer)).collect();
    let writes = writes.iter().map(|&buffer| whole(program, buffer)).collect();
    program.dispatches.push(Dispatch { name: name.into(), reads, writes });
    program.dispatches.len() - 1
}

/// What a random program may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Anything valid: partial reads, dead values, values overwritten unread.
    Free,
    /// Every byte written is read later or survives the run: reads are of whole buffers, what overwrites
    /// something reads it first, and every intermediate is copied to an output in the end. So every hazard
    /// can be seen in results.
    EveryByteMatters,
}

/// A part of a buffer in words of four bytes, more often than not all of it.
fn random_range(program: &Program, buffer: usize, random: &mut Random) -> Access {
    let mut access = whole(program, buffer);
    if random.once_in(3) {
        access.start = 4 * random.below(access.end as usize / 4) as u64;
        access.end = access.start + 4 + 4 * random.below((access.end - access.start) as usize / 4) as u64;
    }
    access
}

/// A valid program of about `count` dispatches over every kind of buffer: mostly new intermediates, some
/// rewriting of old ones, states updated in place, symbols and scratch.
pub fn random_program(random: &mut Random, count: usize, style: Style) -> Program {
    let mut p = Program::default();
    let sizes = [4, 8, 12, 16, 24, 40, 64];
    let size = |random: &mut Random| sizes[random.below(sizes.len())];
    let mut readable = vec![
        buffer(&mut p, "x", 16, BufferKind::Input(0)),
        buffer(&mut p, "w", 24, BufferKind::Weight(0)),
        buffer(&mut p, "cache", 32, BufferKind::State(0)),
        buffer(&mut p, "sym", 8, BufferKind::Symbols),
        buffer(&mut p, "counter", 8, BufferKind::Scratch { fill: 7 }),
    ];
    let (state, symbols, scratch) = (2, 3, 4);
    if style == Style::EveryByteMatters {
        dispatch(&mut p, "tick", &[scratch], &[scratch]);
    }
    let mut arena: Vec<usize> = Vec::new();
    for index in 0..count {
        let mut reads = Vec::new();
        for _ in 0..1 + random.below(2) {
            // Recent values more often than old ones.
            let back = random.below(readable.len().min(4));
            let from = if random.once_in(3) {
                readable[random.below(readable.len())]
            } else {
                readable[readable.len() - 1 - back]
            };
            reads.push(match style {
                Style::Free => random_range(&p, from, random),
                Style::EveryByteMatters => whole(&p, from),
            });
        }
        let mut writes = Vec::new();
        match random.below(10) {
            0 => writes.push(random_range(&p, state, random)),
            1 => writes.push(whole(&p, if random.once_in(2) { symbols } else { scratch })),
            2 if !arena.is_empty() => {
                let again = arena[random.below(arena.len())];
                writes.push(random_range(&p, again, random));
            }
            _ => {
                for name in ["t", "u"].into_iter().take(1 + usize::from(random.once_in(4))) {
                    let bytes = size(random);
                    let new = buffer(&mut p, format!("{name}{index}"), bytes, BufferKind::Arena);
                    writes.push(whole(&p, new));
                }
            }
        }
        for write in &writes {
            if p.buffers[write.buffer].kind == BufferKind::Arena && !arena.contains(&write.buffer) {
                arena.push(write.buffer);
            } else if style == Style::EveryByteMatters {
                reads.push(*write);
            }
        }
        p.dispatches.push(Dispatch { name: format!("k{index}"), reads, writes });
        readable.truncate(5);
        readable.extend(&arena);
    }
    if style == Style::EveryByteMatters {
        for (number, &from) in arena.iter().enumerate() {
            let out = buffer(&mut p, format!("out{number}"), 8, BufferKind::Output(number as u32));
            dispatch(&mut p, format!("copy{number}"), &[from], &[out]);
        }
    }
    p
}

/// A kernel whose every written byte depends on every byte read.
pub fn hash_kernel(dispatch: usize, reads: &[Vec<u8>], writes: &mut [Vec<u8>]) {
    let mut hash = mix(dispatch as u64 + 1);
    for read in reads {
        hash = mix(hash ^ read.len() as u64);
        for &byte in read {
            hash = mix(hash ^ u64::from(byte)).wrapping_add(1);
        }
    }
    for (number, write) in writes.iter_mut().enumerate() {
        for (index, byte) in write.iter_mut().enumerate() {
            *byte = (mix(hash ^ ((number as u64) << 32 | index as u64)) >> 24) as u8;
        }
    }
}

/// The shape of a decoder's decode step: per layer six levels and seven dispatches, a KV cache written in
/// place and read by split attention, weights, symbols; then the head. Sizes in bytes are those of a model
/// of this `width`, `ff` and `rows` (1 row decodes, more prefill).
pub fn decoder(layers: usize, width: u64, ff: u64, rows: u64) -> Program {
    let mut p = Program::default();
    let symbols = buffer(&mut p, "symbols", 256, BufferKind::Symbols);
    let tokens = buffer(&mut p, "tokens", 4 * rows, BufferKind::Input(0));
    let embedding = buffer(&mut p, "embedding", 1 << 20, BufferKind::Weight(0));
    let mut hidden = buffer(&mut p, "hidden", 4 * width * rows, BufferKind::Arena);
    dispatch(&mut p, "embed", &[symbols, tokens, embedding], &[hidden]);
    let kv = width / 4;
    for layer in 0..layers {
        let name = |what: &str| format!("l{layer}.{what}");
        let weight = |p: &mut Program, what: &str, number: usize| {
            buffer(p, name(what), 1 << 20, BufferKind::Weight((1 + 4 * layer + number) as u32))
        };
        let qkv_weight = weight(&mut p, "qkv_w", 0);
        let o_weight = weight(&mut p, "o_w", 1);
        let up_weight = weight(&mut p, "up_w", 2);
        let down_weight = weight(&mut p, "down_w", 3);
        let k_cache = buffer(&mut p, name("k_cache"), 2048 * kv * 2, BufferKind::State(2 * layer as u32));
        let v_cache = buffer(&mut p, name("v_cache"), 2048 * kv * 2, BufferKind::State(2 * layer as u32 + 1));
        let q = buffer(&mut p, name("q"), 4 * width * rows, BufferKind::Arena);
        dispatch(&mut p, name("q"), &[symbols, hidden, qkv_weight], &[q]);
        dispatch(&mut p, name("kv"), &[symbols, hidden, qkv_weight], &[k_cache, v_cache]);
        let partial = buffer(&mut p, name("partial"), 4 * 4 * width * rows, BufferKind::Arena);
        dispatch(&mut p, name("attend"), &[symbols, q, k_cache, v_cache], &[partial]);
        let attended = buffer(&mut p, name("attended"), 4 * width * rows, BufferKind::Arena);
        dispatch(&mut p, name("combine"), &[symbols, partial], &[attended]);
        let after = buffer(&mut p, name("after_attention"), 4 * width * rows, BufferKind::Arena);
        dispatch(&mut p, name("o"), &[attended, o_weight, hidden], &[after]);
        let gated = buffer(&mut p, name("gated"), 4 * ff * rows, BufferKind::Arena);
        dispatch(&mut p, name("up"), &[after, up_weight], &[gated]);
        hidden = buffer(&mut p, name("hidden"), 4 * width * rows, BufferKind::Arena);
        dispatch(&mut p, name("down"), &[gated, down_weight, after], &[hidden]);
    }
    let head = buffer(&mut p, "head_w", 1 << 20, BufferKind::Weight(u32::MAX));
    let logits = buffer(&mut p, "logits", 4 * 32000, BufferKind::Output(0));
    dispatch(&mut p, "head", &[hidden, head], &[logits]);
    let token = buffer(&mut p, "token", 4, BufferKind::Output(1));
    dispatch(&mut p, "sample", &[logits], &[token]);
    p
}
