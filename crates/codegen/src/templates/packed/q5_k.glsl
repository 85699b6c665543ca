// Elements e .. e + 31 of q5_k as signed bytes and (scale, offset): w = d * sc * q - dmin * m.
vec2 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u, at = ${ qs // 4 }u + block * 8u + (group >> 1) * 2u;
    uvec4 lo = quad${ b }(at), hi = quad${ b }(at + 1u), head = quad${ b }(${ head // 4 }u + block);
    uvec4 lo_bit = quad${ b }(${ qh // 4 }u + block * 2u), hi_bit = quad${ b }(${ qh // 4 }u + block * 2u + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(((lo[i] >> (4u * (group & 1u))) & 0x0f0f0f0fu) | (((lo_bit[i] >> group) & 0x01010101u) << 4));
        q[i + 4u] = int(((hi[i] >> (4u * (group & 1u))) & 0x0f0f0f0fu) | (((hi_bit[i] >> group) & 0x01010101u) << 4));
    }
    vec2 d = unpackHalf2x16(head.x);
    uvec3 s = head.yzw >> (8u * (group & 3u));
    uint sc = group < 4u ? s.x & 63u : (s.z & 15u) | ((s.x >> 2) & 48u);
    uint m = group < 4u ? s.y & 63u : ((s.z >> 4) & 15u) | ((s.y >> 2) & 48u);
    return vec2(d.x * float(sc), -d.y * float(m));
}
