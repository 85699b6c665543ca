// Elements e .. e + 31 of q4_0 as signed bytes and (scale, offset): w = d * q - 8 * d.
vec2 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(qs[i] & 0x0f0f0f0fu);
        q[i + 4u] = int((qs[i] >> 4) & 0x0f0f0f0fu);
    }
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    return vec2(d, -8.0 * d);
}
