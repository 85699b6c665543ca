// iq3_xxs: w = d * (0.5 + sc) / 2 * level; 256 elements a block in 8 groups of 32, each with a word of 4 times 7
// signs and a 4-bit sc; a byte chooses a point for 4 elements. The eighth sign makes their number even.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
// The point and the signs of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, j = (e & 255u) >> 3;
    uint pair = at${ b }(${ qs }u + block * 16u + (j >> 1)) >> (16u * (j & 1u));
    uint word = at${ b }(${ sc }u + block * 8u + (j >> 2)), signs = bitfieldExtract(word, int(7u * (j & 3u)), 7);
    s = scale${ b }(block) * (0.5 + float(word >> 28)) * 0.5;
    uint point = iq3_xxs_entry(pair & 255u) | (iq3_xxs_entry((pair >> 8) & 255u) << 12);
    return uvec2(point, signs | (uint(bitCount(signs)) << 7));
}
float load${ b }(uint e) {
    float s;
    uvec2 p = point${ b }(e, s);
    return iq3_xxs_value(s, p, e & 7u);
}
void load8_${ b }(uint e, out float w[8]) {
    float s;
    uvec2 p = point${ b }(e, s);
    [[unroll]] for (uint i = 0u; i < 8u; ++i) { w[i] = iq3_xxs_value(s, p, i); }
}
