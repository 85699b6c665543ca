// iq3_s: w = d * (1 + 2 * sc) * level; 256 elements a block in 8 groups of 32, each with a 4-bit sc; for each 4
// elements 8 low bits and a high one that choose a point; a sign an element.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
uint byte${ b }(uint plane, uint i) { return bitfieldExtract(at${ b }(plane + (i >> 2)), int(8u * (i & 3u)), 8); }
// The point and the signs of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, j = (e & 255u) >> 3;
    uint pair = at${ b }(${ qs }u + block * 16u + (j >> 1)) >> (16u * (j & 1u));
    uint high = byte${ b }(${ qh }u, block * 8u + (j >> 2)) >> (2u * (j & 3u));
    uint sc = bitfieldExtract(at${ b }(${ sc }u + block), int(4u * (j >> 2)), 4);
    s = scale${ b }(block) * float(1u + 2u * sc);
    uint first = iq3_s_entry((pair & 255u) | ((high & 1u) << 8));
    uint second = iq3_s_entry(((pair >> 8) & 255u) | ((high & 2u) << 7));
    return uvec2(first | (second << 12), byte${ b }(${ signs }u, block * 32u + j));
}
float load${ b }(uint e) {
    float s;
    uvec2 p = point${ b }(e, s);
    return iq3_s_value(s, p, e & 7u);
}
void load8_${ b }(uint e, out float w[8]) {
    float s;
    uvec2 p = point${ b }(e, s);
    [[unroll]] for (uint i = 0u; i < 8u; ++i) { w[i] = iq3_s_value(s, p, i); }
}
