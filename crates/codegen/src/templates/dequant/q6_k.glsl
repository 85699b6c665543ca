// q6_k: w = d * sc * (q - 32); 256 elements a block, 16 signed 8-bit scales of 16 elements each.
// Per 128 elements: 64 bytes of low nibbles (two groups of 32 a byte) and 32 bytes of 2 high bits (four). On the device the high bits of
// groups 0 and 2 lie in 16 bytes, then those of 1 and 3.
float scale${ b }(uint block, uint j) {
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    uint s = j >> 4;
    return d * float(bitfieldExtract(int(at${ b }(${ sc }u + block * 4u + (s >> 2))), int(8u * (s & 3u)), 8));
}
uint low${ b }(uint block, uint j) {
    return at${ b }(${ ql }u + block * 32u + (j >> 7) * 16u + (j & 32u) / 4u + ((j & 31u) >> 2)) >> ((j & 64u) / 16u);
}
uint high${ b }(uint block, uint j) {
    return at${ b }(${ qh }u + block * 16u + (j >> 7) * 8u + (j >> 3 & 4u) + (j >> 2 & 3u)) >> ((j >> 3 & 2u) + (j >> 4 & 4u));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u, shift = 8u * (j & 3u);
    uint q = ((low${ b }(block, j) >> shift) & 15u) | (((high${ b }(block, j) >> shift) & 3u) << 4);
    return scale${ b }(block, j) * (float(q) - 32.0);
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    float s = scale${ b }(block, j);
    [[unroll]] for (uint g = 0u; g < 8u; g += 4u) {
        uint lo = low${ b }(block, j + g), hi = high${ b }(block, j + g);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint q = bitfieldExtract(lo, int(8u * i), 4) | (bitfieldExtract(hi, int(8u * i), 2) << 4);
            w[g + i] = s * (float(q) - 32.0);
        }
    }
}
