// Two neighbouring groups of tq2_0, elements e .. e + 63: their words, and as signed bytes with (scales, offsets):
// w = d * q - d.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 lo = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u), hi = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
    }
    raw[8] = at${ b }(${ d }u + (e >> 9));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    uint shift = (e >> 4) & 4u;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        q[i / 4u][i % 4u] = int((raw[i] >> shift) & 0x03030303u);
        q[i / 4u + 2u][i % 4u] = int((raw[i] >> (shift + 2u)) & 0x03030303u);
    }
    float d = unpackHalf2x16(raw[8] >> (16u * ((e >> 8) & 1u))).x;
    return vec4(d, d, -d, -d);
}
