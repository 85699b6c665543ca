// Elements e .. e + 31 of iq3_s: their words, and as signed bytes with their scale: w = d * (1 + 2 * sc) * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec2 qs = pair${ b }(${ qs // 2 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i] = qs[i];
    raw[2] = at${ b }(${ qh }u + (e >> 7));
    raw[3] = at${ b }(${ signs }u + (e >> 5));
    raw[4] = at${ b }(${ sc }u + (e >> 8));
    raw[5] = at${ b }(${ d }u + (e >> 9));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    uint high = raw[2] >> ((e >> 2) & 24u);
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint both = raw[l / 2u] >> (16u * (l & 1u)), bits = high >> (2u * l);
        uvec2 points = uvec2(iq3_s_entry((both & 255u) | ((bits & 1u) << 8)), iq3_s_entry(((both >> 8) & 255u) | ((bits & 2u) << 7)));
        uvec2 bytes = iq3_s_bytes(points, raw[3] >> (8u * l));
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    return unpackHalf2x16(raw[5] >> (16u * ((e >> 8) & 1u))).x * float(1u + 2u * bitfieldExtract(raw[4], int((e >> 3) & 28u), 4));
}
