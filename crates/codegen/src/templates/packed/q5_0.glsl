// Elements e .. e + 31 of q5_0 as signed bytes and (scale, offset): w = d * q - 16 * d.
// The product puts bit i of four to bit 8 i + 4; its other terms lie elsewhere.
vec2 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block);
    uint qh = at${ b }(${ qh }u + block);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint lo = (qh >> (4u * i)) & 15u, hi = (qh >> (4u * i + 16u)) & 15u;
        q[i] = int((qs[i] & 0x0f0f0f0fu) | ((lo * 0x02040810u) & 0x10101010u));
        q[i + 4u] = int(((qs[i] >> 4) & 0x0f0f0f0fu) | ((hi * 0x02040810u) & 0x10101010u));
    }
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    return vec2(d, -16.0 * d);
}
