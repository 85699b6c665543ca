// Elements e .. e + 31 of iq2_s: their words, and as signed bytes with the scales of their halves:
// w = d * (0.5 + sc) / 4 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    raw[0] = at${ b }(${ qs }u + (e >> 5));
    raw[1] = at${ b }(${ signs }u + (e >> 5));
    raw[2] = at${ b }(${ qh }u + (e >> 7));
    raw[3] = at${ b }(${ sc }u + (e >> 7));
    raw[4] = at${ b }(${ d }u + (e >> 9));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    uint high = raw[2] >> ((e >> 2) & 24u), sc = raw[3] >> ((e >> 2) & 24u);
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint point = iq2_s_entry(bitfieldExtract(raw[0], int(8u * l), 8) | (bitfieldExtract(high, int(2u * l), 2) << 8));
        uvec2 bytes = iq2_bytes(point, raw[1] >> (8u * l));
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    float d = unpackHalf2x16(raw[4] >> (16u * ((e >> 8) & 1u))).x * 0.25;
    return vec4(d * (0.5 + float(sc & 15u)), d * (0.5 + float((sc >> 4) & 15u)), 0.0, 0.0);
}
