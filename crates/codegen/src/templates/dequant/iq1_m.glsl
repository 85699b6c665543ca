// iq1_m: w = d * (2 * sc + 1) * (level +- 1/8); 256 elements a block in 16 groups of 16, each with a 3-bit sc; for
// each 8 elements 8 low and 3 high bits that choose a point, and the sign of the shift. The upper quarters of four
// 16-bit words are d.
uint byte${ b }(uint plane, uint i) { return bitfieldExtract(at${ b }(plane + (i >> 2)), int(8u * (i & 3u)), 8); }
// The point and the shift's sign of the 8 elements with element e, and their scale.
uvec2 point${ b }(uint e, out float s) {
    uint block = e >> 8, j = (e & 255u) >> 3;
    uint s0 = at${ b }(${ sc }u + block * 2u), s1 = at${ b }(${ sc }u + block * 2u + 1u);
    uint d = ((s0 >> 12) & 15u) | ((s0 >> 24) & 240u) | ((s1 >> 4) & 0xf00u) | ((s1 >> 16) & 0xf000u);
    uint sc = (j < 16u ? s0 : s1) >> (2u * (j & 8u) + 3u * ((j >> 1) & 3u));
    uint nibble = byte${ b }(${ qh }u, block * 16u + (j >> 1)) >> (4u * (j & 1u));
    s = unpackHalf2x16(d).x * float(2u * (sc & 7u) + 1u);
    return uvec2(iq1_entry(byte${ b }(${ qs }u, block * 32u + j) | ((nibble & 7u) << 8)), (nibble >> 3) & 1u);
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
