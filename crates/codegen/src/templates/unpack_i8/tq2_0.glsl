// Two neighbouring groups of tq2_0, elements e .. e + 63: their words, and as signed bytes with (scales, offsets):
// w = d * q - d.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 6));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ d }u + (e >> 9));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint bits = raw[i % 4u] >> (i / 4u * 4u);
        q[i / 4u][i % 4u] = int(bits & 0x03030303u);
        q[i / 4u + 2u][i % 4u] = int((bits >> 2) & 0x03030303u);
    }
    float d = unpackHalf2x16(raw[4] >> (16u * ((e >> 8) & 1u))).x;
    return vec4(d, d, -d, -d);
}
