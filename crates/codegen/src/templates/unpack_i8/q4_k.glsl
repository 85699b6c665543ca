// Two neighbouring groups of q4_k, elements e .. e + 63: their words, and as signed bytes with (scales, offsets):
// w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 lo = quad${ b }(${ qs // 4 }u + (e >> 5)), hi = quad${ b }(${ qs // 4 }u + (e >> 5) + 1u), head = quad${ b }(${ head // 4 }u + (e >> 8));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
        raw[i + 8u] = head[i];
    }
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        q[i / 4u][i % 4u] = int(raw[i] & 0x0f0f0f0fu);
        q[i / 4u + 2u][i % 4u] = int((raw[i] >> 4) & 0x0f0f0f0fu);
    }
    return pair_scales(e, raw[8], uvec3(raw[9], raw[10], raw[11]));
}
