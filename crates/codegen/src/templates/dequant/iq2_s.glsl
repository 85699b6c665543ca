// iq2_s: w = d * (0.5 + sc) / 4 * level; 256 elements a block in 16 groups of 16, each with a 4-bit sc; for each 8
// elements 8 low and 2 high bits that choose a point, and 8 signs.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
uint byte${ b }(uint plane, uint i) { return bitfieldExtract(at${ b }(plane + (i >> 2)), int(8u * (i & 3u)), 8); }
// The point and the signs of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, j = (e & 255u) >> 3;
    uint sc = bitfieldExtract(byte${ b }(${ sc }u, block * 8u + (j >> 2)), int(2u * (j & 2u)), 4);
    uint high = bitfieldExtract(byte${ b }(${ qh }u, block * 8u + (j >> 2)), int(2u * (j & 3u)), 2);
    s = scale${ b }(block) * (0.5 + float(sc)) * 0.25;
    uint point = iq2_s_entry(byte${ b }(${ qs }u, block * 32u + j) | (high << 8));
    return uvec2(point, byte${ b }(${ signs }u, block * 32u + j));
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
