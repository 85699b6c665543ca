// Two halves of neighbouring groups of q4_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5)), head = quad${ b }(${ head // 4 }u + (e >> 8));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = head[i];
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(raw[i] & 0x0f0f0f0fu);
        q[i + 4u] = int((raw[i] >> 4) & 0x0f0f0f0fu);
    }
    return pair_scales(e, raw[4], uvec3(raw[5], raw[6], raw[7]));
}
