// q4_k: w = d * sc * q - dmin * m; 256 elements a block in 8 groups of 32, each with a 6-bit sc and m.
// Per 64 elements 32 bytes: low nibbles are the first group, high nibbles the second.
vec2 scale${ b }(uint block, uint group) {
    uint head = ${ head }u + block * 4u, j = group & 3u;
    vec2 d = unpackHalf2x16(at${ b }(head));
    uint s0 = at${ b }(head + 1u) >> (8u * j), s1 = at${ b }(head + 2u) >> (8u * j), s2 = at${ b }(head + 3u) >> (8u * j);
    uint sc = group < 4u ? s0 & 63u : (s2 & 15u) | ((s0 >> 2) & 48u);
    uint m = group < 4u ? s1 & 63u : ((s2 >> 4) & 15u) | ((s1 >> 2) & 48u);
    return vec2(d.x * float(sc), d.y * float(m));
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u;
    vec2 s = scale${ b }(block, j >> 5);
    uint q = at${ b }(${ qs }u + block * 32u + (j >> 6) * 8u + ((j & 31u) >> 2)) >> (8u * (j & 3u) + (j & 32u) / 8u);
    return s.x * float(q & 15u) - s.y;
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u, at = ${ qs }u + block * 32u + (j >> 6) * 8u + ((j & 31u) >> 2);
    vec2 s = scale${ b }(block, j >> 5);
    uint lo = at${ b }(at) >> ((j & 32u) / 8u), hi = at${ b }(at + 1u) >> ((j & 32u) / 8u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s.x * float(bitfieldExtract(lo, int(8u * i), 4)) - s.y;
        w[i + 4u] = s.x * float(bitfieldExtract(hi, int(8u * i), 4)) - s.y;
    }
}
