// Elements e .. e + 31 of iq2_xs: their words, and as signed bytes with the scales of their halves:
// w = d * (0.5 + sc) / 4 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec2 qs = pair${ b }(${ qs // 2 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i] = qs[i];
    raw[2] = at${ b }(${ sc }u + (e >> 7));
    raw[3] = at${ b }(${ d }u + (e >> 9));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint word = raw[l / 2u] >> (16u * (l & 1u));
        uvec2 bytes = iq2_bytes(iq2_xs_entry(word & 511u), even_signs((word >> 9) & 127u, 0));
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    uint sc = raw[2] >> ((e >> 2) & 24u);
    float d = unpackHalf2x16(raw[3] >> (16u * ((e >> 8) & 1u))).x * 0.25;
    return vec4(d * (0.5 + float(sc & 15u)), d * (0.5 + float((sc >> 4) & 15u)), 0.0, 0.0);
}
