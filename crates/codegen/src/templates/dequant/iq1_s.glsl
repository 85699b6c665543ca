// iq1_s: w = d * (2 * sc + 1) * (level +- 1/8); 256 elements a block in 8 groups of 32, each with a 3-bit sc and the
// sign of the shift; for each 8 elements 8 low and 3 high bits that choose a point.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
uint byte${ b }(uint plane, uint i) { return bitfieldExtract(at${ b }(plane + (i >> 2)), int(8u * (i & 3u)), 8); }
// The point and the shift's sign of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, j = (e & 255u) >> 3;
    uint word = at${ b }(${ qh }u + block * 4u + (j >> 3)) >> (4u * (j & 4u));
    uint high = bitfieldExtract(word, int(3u * (j & 3u)), 3);
    s = scale${ b }(block) * float(2u * ((word >> 12) & 7u) + 1u);
    return uvec2(iq1_entry(byte${ b }(${ qs }u, block * 32u + j) | (high << 8)), (word >> 15) & 1u);
}
float load${ b }(uint e) {
    float s;
    uvec2 p = point${ b }(e, s);
    return iq1_value(s, p, e & 7u);
}
void load8_${ b }(uint e, out float w[8]) {
    float s;
    uvec2 p = point${ b }(e, s);
    [[unroll]] for (uint i = 0u; i < 8u; ++i) { w[i] = iq1_value(s, p, i); }
}
