// iq4_nl: w = d * levels[q]; 32 elements a block, 16 bytes of nibbles (low nibbles first), f16 scale.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x; }
float load${ b }(uint e) {
    uint block = e >> 5, j = e & 31u;
    uint q = at${ b }(${ qs }u + block * 4u + ((j & 15u) >> 2)) >> (8u * (j & 3u) + (j & 16u) / 4u);
    return scale${ b }(block) * float(iq4_level(q & 15u));
}
void load8_${ b }(uint e, out float w[8]) {
    uint block = e >> 5, j = e & 31u, at = ${ qs }u + block * 4u + ((j & 15u) >> 2);
    float d = scale${ b }(block);
    ivec4 levels = iq4_bytes(uvec2(at${ b }(at), at${ b }(at + 1u)) >> ((j & 16u) / 4u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = d * float(bitfieldExtract(levels.x, int(8u * i), 8));
        w[i + 4u] = d * float(bitfieldExtract(levels.y, int(8u * i), 8));
    }
}
