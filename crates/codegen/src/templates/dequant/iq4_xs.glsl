// iq4_xs: w = d * (sc - 32) * levels[q]; 256 elements a block in 8 groups of 32, each with a 6-bit sc and
// 16 bytes of nibbles (low nibbles first).
float scale${ b }(uint block, uint group) {
    uint head = at${ b }(${ head }u + block * 2u), lows = at${ b }(${ head }u + block * 2u + 1u);
    uint sc = bitfieldExtract(lows, int(4u * group), 4) | (bitfieldExtract(head, int(16u + 2u * group), 2) << 4);
    return unpackHalf2x16(head).x * (float(sc) - 32.0);
}
float load${ b }(uint e) {
    uint block = e >> 8, group = (e & 255u) >> 5, j = e & 31u;
    uint q = at${ b }(${ qs }u + block * 32u + group * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    return scale${ b }(block, group) * float(iq4_level(q & 15u));
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 8, group = (e & 255u) >> 5, j = e & 31u;
    uint at = ${ qs }u + block * 32u + group * 4u + ((j & 15u) >> 2);
    float s = scale${ b }(block, group);
    ivec4 levels = iq4_bytes(uvec2(at${ b }(at), at${ b }(at + 1u)) >> ((j & 16u) / 4u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s * float(bitfieldExtract(levels.x, int(8u * i), 8));
        w[i + 4u] = s * float(bitfieldExtract(levels.y, int(8u * i), 8));
    }
}
