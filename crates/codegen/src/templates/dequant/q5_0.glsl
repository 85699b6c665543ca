// q5_0: w = d * (q - 16); 32 elements a block, 16 bytes of nibbles (low nibbles first), 32 high bits, f16 scale.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
float load${ b }(uint e) {
    uint block = e >> 5, j = e & 31u;
    uint low = at${ b }(${ qs }u + block * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    uint high = at${ b }(${ qh }u + block) >> j;
    return scale${ b }(block) * (float((low & 15u) | ((high & 1u) << 4)) - 16.0);
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 5, j = e & 31u, at = ${ qs }u + block * 4u + ((j & 15u) >> 2);
    float d = scale${ b }(block);
    uint lo = at${ b }(at) >> ((j & 16u) / 4u), hi = at${ b }(at + 1u) >> ((j & 16u) / 4u);
    uint high = at${ b }(${ qh }u + block) >> j;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint q0 = bitfieldExtract(lo, int(8u * i), 4) | (bitfieldExtract(high, int(i), 1) << 4);
        uint q4 = bitfieldExtract(hi, int(8u * i), 4) | (bitfieldExtract(high, int(i + 4u), 1) << 4);
        w[i] = d * (float(q0) - 16.0);
        w[i + 4u] = d * (float(q4) - 16.0);
    }
}
