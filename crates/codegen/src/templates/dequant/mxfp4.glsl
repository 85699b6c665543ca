// mxfp4: w = 2^(e - 128) * levels[q]; 32 elements a block, 16 bytes of nibbles (low nibbles first), a byte e.
// The power as two factors, both normal numbers: a small one alone might be flushed to zero.
vec2 scale${ b }(uint block) {
    uint e = bitfieldExtract(at${ b }(${ e }u + (block >> 2)), int(8u * (block & 3u)), 8);
    return e < 64u ? vec2(uintBitsToFloat((e + 63u) << 23), uintBitsToFloat(63u << 23))
                   : vec2(uintBitsToFloat((e - 1u) << 23), 1.0);
}
float load${ b }(uint e) {
    uint block = e >> 5, j = e & 31u;
    uint q = at${ b }(${ qs }u + block * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    vec2 s = scale${ b }(block);
    precise float w = float(fp4_level(q & 15u)) * s.x;
    return w * s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 5, j = e & 31u, at = ${ qs }u + block * 4u + ((j & 15u) >> 2);
    vec2 s = scale${ b }(block);
    uint lo = at${ b }(at) >> ((j & 16u) / 4u), hi = at${ b }(at + 1u) >> ((j & 16u) / 4u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        precise float w0 = float(fp4_level(bitfieldExtract(lo, int(8u * i), 4))) * s.x;
        precise float w4 = float(fp4_level(bitfieldExtract(hi, int(8u * i), 4))) * s.x;
        w[i] = w0 * s.y;
        w[i + 4u] = w4 * s.y;
    }
}
