// q4_1: w = d * q + m; 32 elements a block, 16 bytes of nibbles (low nibbles first), f16 scale and minimum.
float load${ b }(uint e) {
    uint block = e >> 5, j = e & 31u;
    vec2 s = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint q = at${ b }(${ qs }u + block * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    return s.x * float(q & 15u) + s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 5, j = e & 31u, at = ${ qs }u + block * 4u + ((j & 15u) >> 2);
    vec2 s = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint lo = at${ b }(at) >> ((j & 16u) / 4u), hi = at${ b }(at + 1u) >> ((j & 16u) / 4u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s.x * float(bitfieldExtract(lo, int(8u * i), 4)) + s.y;
        w[i + 4u] = s.x * float(bitfieldExtract(hi, int(8u * i), 4)) + s.y;
    }
}
