// Elements e .. e + 31 of iq3_xxs: their words, and as signed bytes with their scale: w = d * (0.5 + sc) / 2 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec2 qs = pair${ b }(${ qs // 2 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i] = qs[i];
    raw[2] = at${ b }(${ sc }u + (e >> 5));
    raw[3] = at${ b }(${ d }u + (e >> 9));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint both = raw[l / 2u] >> (16u * (l & 1u));
        uvec2 points = uvec2(iq3_xxs_entry(both & 255u), iq3_xxs_entry((both >> 8) & 255u));
        uvec2 bytes = iq3_xxs_bytes(points, even_signs(raw[2], int(l)));
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    return unpackHalf2x16(raw[3] >> (16u * ((e >> 8) & 1u))).x * (0.5 + float(raw[2] >> 28)) * 0.5;
}
