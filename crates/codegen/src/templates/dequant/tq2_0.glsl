// tq2_0: w = d * (q - 1); 256 elements a block, f16 scale. Per 128 elements 32 bytes, each with one element of
// four groups of 32; on the device 16 bytes for each 64 elements.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
uint low${ b }(uint block, uint j) {
    return at${ b }(${ qs }u + block * 16u + (j >> 6) * 4u + (j >> 2 & 3u)) >> ((j >> 2 & 4u) + (j >> 4 & 2u));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u;
    return scale${ b }(block) * (float((low${ b }(block, j) >> (8u * (j & 3u))) & 3u) - 1.0);
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    float d = scale${ b }(block);
    uint lo = low${ b }(block, j), hi = low${ b }(block, j + 4u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = d * (float(bitfieldExtract(lo, int(8u * i), 2)) - 1.0);
        w[i + 4u] = d * (float(bitfieldExtract(hi, int(8u * i), 2)) - 1.0);
    }
}
