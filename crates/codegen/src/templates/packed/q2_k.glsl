// Elements e .. e + 31 of q2_k as signed bytes and (scales, offsets) of their halves: w = d * sc * q - dmin * m.
vec4 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u, at = ${ qs // 4 }u + block * 4u + (group >> 2) * 2u;
    uvec4 lo = quad${ b }(at), hi = quad${ b }(at + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int((lo[i] >> (2u * (group & 3u))) & 0x03030303u);
        q[i + 4u] = int((hi[i] >> (2u * (group & 3u))) & 0x03030303u);
    }
    vec2 d = unpackHalf2x16(at${ b }(${ dm }u + block));
    uint s = at${ b }(${ sc }u + block * 4u + (group >> 1)) >> (16u * (group & 1u));
    return vec4(d.x * vec2(s & 15u, (s >> 8) & 15u), -d.y * vec2((s >> 4) & 15u, (s >> 12) & 15u));
}
