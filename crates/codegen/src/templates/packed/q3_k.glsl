// Elements e .. e + 31 of q3_k as signed bytes and (scales, offsets) of their halves: w = d * (sc - 32) * (q - 4).
vec4 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u, at = ${ qs // 4 }u + block * 4u + (group >> 2) * 2u;
    uvec4 lo = quad${ b }(at), hi = quad${ b }(at + 1u);
    uvec4 lo_bit = quad${ b }(${ qh // 4 }u + block * 2u), hi_bit = quad${ b }(${ qh // 4 }u + block * 2u + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(((lo[i] >> (2u * (group & 3u))) & 0x03030303u) | (((lo_bit[i] >> group) & 0x01010101u) << 2));
        q[i + 4u] = int(((hi[i] >> (2u * (group & 3u))) & 0x03030303u) | (((hi_bit[i] >> group) & 0x01010101u) << 2));
    }
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    uint sc = ${ sc }u + block * 3u, j = 2u * group;
    uint low = at${ b }(sc + ((j & 7u) >> 2)) >> (8u * (j & 3u) + (j & 8u) / 2u);
    uint high = at${ b }(sc + 2u) >> (8u * (j & 3u) + 2u * (j >> 2));
    uvec2 s = uvec2((low & 15u) | ((high & 3u) << 4), ((low >> 8) & 15u) | (((high >> 8) & 3u) << 4));
    vec2 scale = d * (vec2(s) - 32.0);
    return vec4(scale, -4.0 * scale);
}
