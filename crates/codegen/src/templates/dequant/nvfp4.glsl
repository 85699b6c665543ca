// nvfp4: w = sc / 2 * levels[q]; 64 elements a block in 4 groups of 16, each with an 8-bit float sc (e4m3, its
// sign ignored, 0x7f for zero) and 8 bytes of nibbles (low nibbles first).
float scale${ b }(uint block, uint group) {
    uint x = bitfieldExtract(at${ b }(${ sc }u + block), int(8u * group), 8), exponent = (x >> 3) & 15u;
    float normal = uintBitsToFloat(((exponent + 119u) << 23) | ((x & 7u) << 20));
    float s = exponent == 0u ? float(x & 7u) / 1024.0 : normal;
    return x == 127u ? 0.0 : s;
}
float load${ b }(uint e) {
    uint block = e >> 6, group = (e & 63u) >> 4, j = e & 15u;
    uint q = at${ b }(${ qs }u + block * 8u + group * 2u + ((j & 7u) >> 2)) >> (8u * (j & 3u) + (j & 8u) / 2u);
    return scale${ b }(block, group) * float(fp4_level(q & 15u));
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 6, group = (e & 63u) >> 4, j = e & 15u, at = ${ qs }u + block * 8u + group * 2u;
    float s = scale${ b }(block, group);
    uint lo = at${ b }(at) >> ((j & 8u) / 2u), hi = at${ b }(at + 1u) >> ((j & 8u) / 2u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s * float(fp4_level(bitfieldExtract(lo, int(8u * i), 4)));
        w[i + 4u] = s * float(fp4_level(bitfieldExtract(hi, int(8u * i), 4)));
    }
}
