// q5_1: w = d * q + m; 32 elements a block, 16 bytes of nibbles (low nibbles first), 32 high bits, f16 scale
// and minimum.
float load${ b }(uint e) {
    uint block = e >> 5, j = e & 31u;
    vec2 s = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint low = at${ b }(${ qs }u + block * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    uint high = at${ b }(${ qh }u + block) >> j;
    return s.x * float((low & 15u) | ((high & 1u) << 4)) + s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 5, j = e & 31u, at = ${ qs }u + block * 4u + ((j & 15u) >> 2);
    vec2 s = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint lo = at${ b }(at) >> ((j & 16u) / 4u), hi = at${ b }(at + 1u) >> ((j & 16u) / 4u);
    uint high = at${ b }(${ qh }u + block) >> j;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint q0 = bitfieldExtract(lo, int(8u * i), 4) | (bitfieldExtract(high, int(i), 1) << 4);
        uint q4 = bitfieldExtract(hi, int(8u * i), 4) | (bitfieldExtract(high, int(i + 4u), 1) << 4);
        w[i] = s.x * float(q0) + s.y;
        w[i + 4u] = s.x * float(q4) + s.y;
    }
}
