// Elements e .. e + 31 of q4_1: their words, and as signed bytes with (scale, offset): w = d * q + m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ dm }u + (e >> 5));
}
vec2 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[0][i] = int(raw[i] & 0x0f0f0f0fu);
        q[1][i] = int((raw[i] >> 4) & 0x0f0f0f0fu);
    }
    return unpackHalf2x16(raw[4]);
}
