// iq2_xxs: w = d * (0.5 + sc) / 4 * level; 256 elements a block in 8 groups of 32, each with 4 bytes that choose
// points for 8 elements and a word of 4 times 7 signs and a 4-bit sc. The eighth sign makes their number even.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
// The point and the signs of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, l = (e >> 3) & 3u, at = ${ qs }u + block * 16u + ((e >> 5) & 7u) * 2u;
    uint word = at${ b }(at + 1u), signs = bitfieldExtract(word, int(7u * l), 7);
    s = scale${ b }(block) * (0.5 + float(word >> 28)) * 0.25;
    uint point = iq2_xxs_entry(bitfieldExtract(at${ b }(at), int(8u * l), 8));
    return uvec2(point, signs | (uint(bitCount(signs)) << 7));
}
float load${ b }(uint e) {
    float s;
    uvec2 p = point${ b }(e, s);
    return iq2_value(s, p, e & 7u);
}
void load8_${ b }(uint e, out float w[8]) {
    float s;
    uvec2 p = point${ b }(e, s);
    [[unroll]] for (uint i = 0u; i < 8u; ++i) { w[i] = iq2_value(s, p, i); }
}
