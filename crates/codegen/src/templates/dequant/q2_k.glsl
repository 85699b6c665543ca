// q2_k: w = d * sc * q - dmin * m; 256 elements a block in 16 groups of 16, each with a 4-bit sc and m.
// Per 128 elements 32 bytes, each with one element of four groups of 32; on the device 16 bytes for groups 0 and 2, then
// 16 for 1 and 3: of bytes 0 .. 15 in the lower two bits of each half of a byte, of bytes 16 .. 31 in the upper.
vec2 scale${ b }(uint block, uint j) {
    vec2 d = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint s = at${ b }(${ sc }u + block * 4u + (j >> 6)) >> (8u * ((j >> 4) & 3u));
    return vec2(d.x * float(s & 15u), d.y * float((s >> 4) & 15u));
}
uint low${ b }(uint block, uint j) {
    return at${ b }(${ qs }u + block * 16u + (j >> 7) * 8u + (j >> 3 & 4u) + (j >> 2 & 3u)) >> ((j >> 3 & 2u) + (j >> 4 & 4u));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u;
    vec2 s = scale${ b }(block, j);
    return s.x * float((low${ b }(block, j) >> (8u * (j & 3u))) & 3u) - s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    vec2 s = scale${ b }(block, j);
    uint lo = low${ b }(block, j), hi = low${ b }(block, j + 4u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s.x * float(bitfieldExtract(lo, int(8u * i), 2)) - s.y;
        w[i + 4u] = s.x * float(bitfieldExtract(hi, int(8u * i), 2)) - s.y;
    }
}
