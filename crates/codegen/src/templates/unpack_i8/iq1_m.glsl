// Elements e .. e + 31 of iq1_m: their words, and as signed bytes with the scales of their halves:
// w = d * (2 * sc + 1) / 8 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    raw[0] = at${ b }(${ qs }u + (e >> 5));
    raw[1] = at${ b }(${ qh }u + (e >> 6));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i + 2u] = at${ b }(${ sc }u + (e >> 8) * 2u + i);
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    uint head = raw[1] >> ((e >> 1) & 16u);
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint high = head >> (4u * l);
        uint point = iq1_entry(bitfieldExtract(raw[0], int(8u * l), 8) | ((high & 7u) << 8));
        uvec2 bytes = iq1_bytes(point, (high >> 3) & 1u);
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    uint bits = ((raw[2] >> 12) & 15u) | ((raw[2] >> 24) & 240u) | ((raw[3] >> 4) & 0xf00u) | ((raw[3] >> 16) & 0xf000u);
    // Two groups of 16 of the block's eight pairs; a 16-bit word has the scales of two pairs.
    uint pair = (e >> 5) & 7u, sc = (pair < 4u ? raw[2] : raw[3]) >> (8u * (pair & 2u) + 6u * (pair & 1u));
    float d = unpackHalf2x16(bits).x * 0.125;
    return vec4(d * float(2u * (sc & 7u) + 1u), d * float(2u * ((sc >> 3) & 7u) + 1u), 0.0, 0.0);
}
