// Two neighbouring groups of q5_k, elements e .. e + 63: their words, and as signed bytes with (scales, offsets):
// w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 lo = quad${ b }(${ qs // 4 }u + (e >> 5)), hi = quad${ b }(${ qs // 4 }u + (e >> 5) + 1u), head = quad${ b }(${ head // 4 }u + (e >> 8));
    uvec2 bits = pair${ b }(${ qh // 2 }u + (e >> 6));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
        raw[i + 8u] = head[i];
    }
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i + 12u] = bits[i];
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint bits = raw[i % 2u + 12u] >> (i / 2u * 2u);
        q[i / 4u][i % 4u] = int((raw[i] & 0x0f0f0f0fu) | ((bits & 0x01010101u) << 4));
        q[i / 4u + 2u][i % 4u] = int(((raw[i] >> 4) & 0x0f0f0f0fu) | ((bits & 0x02020202u) << 3));
    }
    return pair_scales(e, raw[8], uvec3(raw[9], raw[10], raw[11]));
}
