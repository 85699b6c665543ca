// Elements e .. e + 31 of iq1_s: their words, and as signed bytes with their scale: w = d * (2 * sc + 1) / 8 * byte.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    raw[0] = at${ b }(${ qs }u + (e >> 5));
    raw[1] = at${ b }(${ qh }u + (e >> 6));
    raw[2] = at${ b }(${ d }u + (e >> 9));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    uint head = raw[1] >> ((e >> 1) & 16u);
    [[unroll]] for (uint l = 0u; l < 4u; ++l) {
        uint point = iq1_entry(bitfieldExtract(raw[0], int(8u * l), 8) | (bitfieldExtract(head, int(3u * l), 3) << 8));
        uvec2 bytes = iq1_bytes(point, (head >> 15) & 1u);
        q[l / 2u][2u * (l & 1u)] = int(bytes.x);
        q[l / 2u][2u * (l & 1u) + 1u] = int(bytes.y);
    }
    return unpackHalf2x16(raw[2] >> (16u * ((e >> 8) & 1u))).x * float(2u * ((head >> 12) & 7u) + 1u) * 0.125;
}
