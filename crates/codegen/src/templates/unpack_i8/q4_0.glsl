// Elements e .. e + 31 of q4_0: their words, and as signed bytes with (scale, offset): w = d * q - 8 * d.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ d }u + (e >> 6));
}
vec2 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[0][i] = int(raw[i] & 0x0f0f0f0fu);
        q[1][i] = int((raw[i] >> 4) & 0x0f0f0f0fu);
    }
    float d = unpackHalf2x16(raw[4] >> (16u * ((e >> 5) & 1u))).x;
    return vec2(d, -8.0 * d);
}
