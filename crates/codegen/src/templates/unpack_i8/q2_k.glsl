// Groups of q2_k of which one is 64 elements behind the other, e .. e + 31 and e + 64 .. e + 95: their words, and as signed
// bytes with (scales, offsets) of their halves: w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u + ((e >> 5) & 1u));
    uvec2 sc = pair${ b }(${ sc // 2 }u + (e >> 7));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ dm }u + (e >> 8));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i + 5u] = sc[i];
}
mat2x4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint bits = raw[i % 4u] >> (i / 4u * 2u);
        q[i / 4u][i % 4u] = int(bits & 0x03030303u);
        q[i / 4u + 2u][i % 4u] = int((bits >> 4) & 0x03030303u);
    }
    vec2 d = unpackHalf2x16(raw[4]);
    uint odd = (e >> 1) & 16u, s = raw[5] >> odd, t = raw[6] >> odd;
    return mat2x4(d.x * vec4(s & 15u, (s >> 8) & 15u, t & 15u, (t >> 8) & 15u), -d.y * vec4((s >> 4) & 15u, (s >> 12) & 15u, (t >> 4) & 15u, (t >> 12) & 15u));
}
