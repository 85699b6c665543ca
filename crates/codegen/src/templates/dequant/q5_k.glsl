// q5_k: w = d * sc * q - dmin * m; 256 elements a block in 8 groups of 32, each with a 6-bit sc and m.
// Per 64 elements 32 bytes: low nibbles are the first group, high nibbles the second; 32 bytes of a high bit
// (eight groups a byte), on the device 8 bytes for each 64 elements.
vec2 scale${ b }(uint block, uint group) {
    uint head = ${ head }u + block * 4u, j = group & 3u;
    vec2 d = unpackHalf2x16(at${ b }(head));
    uint s0 = at${ b }(head + 1u) >> (8u * j), s1 = at${ b }(head + 2u) >> (8u * j), s2 = at${ b }(head + 3u) >> (8u * j);
    uint sc = group < 4u ? s0 & 63u : (s2 & 15u) | ((s0 >> 2) & 48u);
    uint m = group < 4u ? s1 & 63u : ((s2 >> 4) & 15u) | ((s1 >> 2) & 48u);
    return vec2(d.x * float(sc), d.y * float(m));
}
uint low${ b }(uint block, uint j) {
    return at${ b }(${ qs }u + block * 32u + (j >> 6) * 8u + ((j & 31u) >> 2)) >> ((j & 32u) / 8u);
}
uint high${ b }(uint block, uint j) {
    return at${ b }(${ qh }u + block * 8u + (j >> 6) * 2u + (j >> 2 & 1u)) >> ((j >> 2 & 6u) + (j >> 5 & 1u));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u, shift = 8u * (j & 3u);
    vec2 s = scale${ b }(block, j >> 5);
    uint q = ((low${ b }(block, j) >> shift) & 15u) | (((high${ b }(block, j) >> shift) & 1u) << 4);
    return s.x * float(q) - s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    vec2 s = scale${ b }(block, j >> 5);
    [[unroll]] for (uint g = 0u; g < 8u; g += 4u) {
        uint lo = low${ b }(block, j + g), hi = high${ b }(block, j + g);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint q = bitfieldExtract(lo, int(8u * i), 4) | (bitfieldExtract(hi, int(8u * i), 1) << 4);
            w[g + i] = s.x * float(q) - s.y;
        }
    }
}
