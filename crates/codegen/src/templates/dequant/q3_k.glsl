// q3_k: w = d * (sc - 32) * (q - 4); 256 elements a block in 16 groups of 16, each with a 6-bit sc.
// Per 128 elements 32 bytes of 2 low bits (four groups of 32 a byte); 32 bytes of a high bit (eight groups). On the device those of
// two groups, one 64 elements behind the other, lie together: 16 bytes of low bits and 8 of high bits.
float scale${ b }(uint block, uint j) {
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    uint s = j >> 4, at = ${ sc }u + block * 3u;
    uint low = at${ b }(at + ((s & 7u) >> 2)) >> (8u * (s & 3u) + (s & 8u) / 2u);
    uint high = at${ b }(at + 2u) >> (8u * (s & 3u) + 2u * (s >> 2));
    return d * (float((low & 15u) | ((high & 3u) << 4)) - 32.0);
}
uint low${ b }(uint block, uint j) {
    return at${ b }(${ qs }u + block * 16u + (j >> 7) * 8u + (j >> 3 & 4u) + (j >> 2 & 3u)) >> ((j >> 3 & 2u) + (j >> 4 & 4u));
}
uint high${ b }(uint block, uint j) {
    return at${ b }(${ qh }u + block * 8u + (j >> 7) * 4u + (j >> 4 & 2u) + (j >> 2 & 1u)) >> ((j >> 3 & 1u) + (j >> 2 & 4u) + (j >> 5 & 2u));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u, shift = 8u * (j & 3u);
    uint q = ((low${ b }(block, j) >> shift) & 3u) | (((high${ b }(block, j) >> shift) & 1u) << 2);
    return scale${ b }(block, j) * (float(q) - 4.0);
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    float s = scale${ b }(block, j);
    [[unroll]] for (uint g = 0u; g < 8u; g += 4u) {
        uint lo = low${ b }(block, j + g), hi = high${ b }(block, j + g);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint q = bitfieldExtract(lo, int(8u * i), 2) | (bitfieldExtract(hi, int(8u * i), 1) << 2);
            w[g + i] = s * (float(q) - 4.0);
        }
    }
}
