// Elements e .. e + 31 of iq2_xxs: their words, and as signed bytes with their scale: w = d * (0.5 + sc) / 4 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec2 qs = pair${ b }(${ qs // 2 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i] = qs[i];
    raw[2] = at${ b }(${ d }u + (e >> 9));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uvec2 bytes = iq2_bytes(iq2_xxs_entry(bitfieldExtract(raw[0], int(8u * l), 8)), even_signs(raw[1], int(l)));
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    return unpackHalf2x16(raw[2] >> (16u * ((e >> 8) & 1u))).x * (0.5 + float(raw[1] >> 28)) * 0.25;
}
