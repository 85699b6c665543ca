// Elements e .. e + 31 of iq4_nl as signed bytes and their scale: w = d * level.
float packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = iq4_bytes(qs[i]);
        q[i + 4u] = iq4_bytes(qs[i] >> 4);
    }
    return unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
}
