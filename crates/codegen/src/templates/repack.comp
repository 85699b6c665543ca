#version 450
// Rearranges a run of blocks, as a file holds them, into one plane of the device's layout: what a group of fields has of
// block after block. Each invocation writes a word. The field of a block has 1, 2 or a multiple of 4 bytes, so a word is
// made of 4 pieces, 2 or 1; a piece lies anywhere in the file's words.
layout(local_size_x = ${ workgroup }) in;
layout(set = 0, binding = 0, std430) readonly buffer B0 { uint b0[]; };
layout(set = 0, binding = 1, std430) writeonly buffer B1 { uint b1[]; };
layout(push_constant) uniform Run {
    uint block_bytes;  // of the file's blocks
    uint start;        // of the field in a block
    uint field_bytes;
    uint bytes;        // of the field in all blocks of the run; behind them the plane is padded with zeros
    uint first;        // the word of b1 at which the run starts
    uint words;        // to be written
    uint share;        // the bits of each byte that are its lowest share; the others are shifted from there
    uint own;          // words that each share fills, of every eight
    uint shifts;       // of the shares, 4 bits each
} run;
// The four bytes of b0 from this one on.
uint bytes_at(uint i) {
    uint low = b0[i >> 2], high = b0[(i >> 2) + 1u], shift = 8u * (i & 3u);
    return shift == 0u ? low : (low >> shift) | (high << (32u - shift));
}
// A word of the plane, its bits as they are in the file.
uint word_at(uint word) {
    const uint field = run.field_bytes, piece = min(field, 4u), mask = 0xffffffffu >> (32u - 8u * piece);
    uint value = 0u;
    for (uint at = 0u; at < 4u; at += piece) {
        const uint i = 4u * word + at, block = i / field;
        if (i < run.bytes) {
            const uint from = block * run.block_bytes + run.start + (i - block * field);
            value |= (bytes_at(from) & mask) << (8u * at);
        }
    }
    return value;
}
uint shift_of(uint share) { return (run.shifts >> (4u * share)) & 15u; }
void main() {
    const uint word = gl_GlobalInvocationID.x;
    if (word < run.words) {
        // Of eight words, share p of word (j, k) becomes share j of word (p, k).
        const uint first = word & ~7u, p = (word & 7u) / run.own, k = (word & 7u) % run.own;
        uint value = 0u;
        for (uint j = 0u; j < 8u / run.own; ++j)
            value |= (word_at(first + j * run.own + k) >> shift_of(p) & run.share) << shift_of(j);
        b1[run.first + word] = value;
    }
}
