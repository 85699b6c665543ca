// Two halves of neighbouring groups of q2_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u + ((e >> 5) & 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ dm }u + (e >> 8));
    raw[5] = at${ b }(${ sc }u + (e >> 6));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    uint shift = (e >> 4) & 4u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int((raw[i] >> shift) & 0x03030303u);
        q[i + 4u] = int((raw[i] >> (shift + 2u)) & 0x03030303u);
    }
    vec2 d = unpackHalf2x16(raw[4]);
    uint s = raw[5] >> ((e >> 2) & 8u);
    return vec4(d.x * vec2(s & 15u, (s >> 16) & 15u), -d.y * vec2((s >> 4) & 15u, (s >> 20) & 15u));
}
