// tq1_0: w = d * (q - 1); 256 elements a block. Bytes hold base-3 digits as the fraction of 256 that begins with
// them: 32 bytes of 5 digits, 16 bytes of 5, 4 bytes of 4; digit n of a group's bytes are neighbours.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
// The word with elements j to j + 3 (j a multiple of 4) of a block, and the power of 3 that brings their digit up.
uvec2 digits${ b }(uint block, uint j) {
    uint at = ${ qh }u + block, digit = (j - 240u) >> 2;
    if (j < 160u) { at = ${ qs }u + block * 12u + ((j & 31u) >> 2); digit = j >> 5; }
    else if (j < 240u) { at = ${ qs }u + block * 12u + 8u + ((j & 15u) >> 2); digit = (j - 160u) >> 4; }
    return uvec2(at${ b }(at), powers_of_3[digit]);
}
float digit${ b }(uvec2 word, uint i) {
    return float((((bitfieldExtract(word.x, int(8u * i), 8) * word.y) & 255u) * 3u) >> 8) - 1.0;
}
float load${ b }(uint e) {
    uint block = e >> 8, j = e & 255u;
    return scale${ b }(block) * digit${ b }(digits${ b }(block, j & ~3u), j & 3u);
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, j = e & 255u;
    float d = scale${ b }(block);
    uvec2 lo = digits${ b }(block, j), hi = digits${ b }(block, j + 4u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = d * digit${ b }(lo, i);
        w[i + 4u] = d * digit${ b }(hi, i);
    }
}
