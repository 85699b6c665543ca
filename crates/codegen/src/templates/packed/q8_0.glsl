// Elements e .. e + 31 of q8_0 as signed bytes and their scale: w = d * q.
float packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 lo = quad${ b }(${ qs // 4 }u + 2u * block), hi = quad${ b }(${ qs // 4 }u + 2u * block + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(lo[i]);
        q[i + 4u] = int(hi[i]);
    }
    return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
}
