// Elements e .. e + 31 of q4_1 as signed bytes and (scale, offset): w = d * q + m.
vec2 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(qs[i] & 0x0f0f0f0fu);
        q[i + 4u] = int((qs[i] >> 4) & 0x0f0f0f0fu);
    }
    return unpackHalf2x16(at${ b }(${ dm }u + block));
}
