// Elements e .. e + 31 of tq2_0 as signed bytes and (scale, offset): w = d * q - d.
vec2 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u, at = ${ qs // 4 }u + block * 4u + (group >> 2) * 2u;
    uvec4 lo = quad${ b }(at), hi = quad${ b }(at + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int((lo[i] >> (2u * (group & 3u))) & 0x03030303u);
        q[i + 4u] = int((hi[i] >> (2u * (group & 3u))) & 0x03030303u);
    }
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    return vec2(d, -d);
}
