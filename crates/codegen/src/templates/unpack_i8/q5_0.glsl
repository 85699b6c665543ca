// Elements e .. e + 31 of q5_0: their words, and as signed bytes with (scale, offset): w = d * q - 16 * d.
// The product puts bit i of four to bit 8 i + 4; its other terms lie elsewhere.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ qh }u + (e >> 5));
    raw[5] = at${ b }(${ d }u + (e >> 6));
}
vec2 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint lo = (raw[4] >> (4u * i)) & 15u, hi = (raw[4] >> (4u * i + 16u)) & 15u;
        q[0][i] = int((raw[i] & 0x0f0f0f0fu) | ((lo * 0x02040810u) & 0x10101010u));
        q[1][i] = int(((raw[i] >> 4) & 0x0f0f0f0fu) | ((hi * 0x02040810u) & 0x10101010u));
    }
    float d = unpackHalf2x16(raw[5] >> (16u * ((e >> 5) & 1u))).x;
    return vec2(d, -16.0 * d);
}
