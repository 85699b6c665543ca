// Two halves of neighbouring groups of q5_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5)), head = quad${ b }(${ head // 4 }u + (e >> 8));
    uvec4 bit = quad${ b }(${ qh // 4 }u + (e >> 8) * 2u + ((e >> 5) & 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = bit[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 8u] = head[i];
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint bits = raw[i + 4u] >> ((e >> 5) & 6u);
        q[i] = int((raw[i] & 0x0f0f0f0fu) | ((bits & 0x01010101u) << 4));
        q[i + 4u] = int(((raw[i] >> 4) & 0x0f0f0f0fu) | ((bits & 0x02020202u) << 3));
    }
    return pair_scales(e, raw[8], uvec3(raw[9], raw[10], raw[11]));
}
