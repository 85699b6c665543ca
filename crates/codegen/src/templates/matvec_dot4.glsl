//% if b is none
// The activations in blocks of 32 signed bytes: [row][block]. The lower halves of all blocks come first; the upper halves
// start at ${ upper }.
shared ivec4 x_bytes[${ upper + blocks }];
// The scale of each block${ "" if several else ", and the sums of its halves times the scale" }.
shared float x_scale[${ blocks }];
//% if not several
shared vec2 x_sum[${ blocks }];
//% endif
//% if several
// Where a block is: of blocks that are read together, every second one or two of four, eight fall into different banks.
uint place(uint block) { return block ^ (block >> 3 & 1u) * 3u; }
//% endif
//% endif
// The sum of 16 products of weights and activations.
int dot16(ivec4 q, ivec4 x) {
    return dotPacked4x8EXT(q.x, x.x) + dotPacked4x8EXT(q.y, x.y) + dotPacked4x8EXT(q.z, x.z) + dotPacked4x8EXT(q.w, x.w);
}
//% if several
// The sums of the halves of a block of activations.
vec2 sums_of_halves(ivec4 lo, ivec4 hi) {
    const ivec4 ones = ivec4(0x01010101);
    return vec2(dot16(ones, lo), dot16(ones, hi));
}
//% endif
//% if b is not none
// Reads a block of activations: its halves, its scale, and the sums of the halves times the scale.
float activations(uint block, out ivec4 lo, out ivec4 hi, out vec2 sums) {
    const float scale = block${ b }(block, lo, hi);
    const ivec4 ones = ivec4(0x01010101);
    sums = scale * vec2(dot16(ones, lo), dot16(ones, hi));
    return scale;
}
//% endif
