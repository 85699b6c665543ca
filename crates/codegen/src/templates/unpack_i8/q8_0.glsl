// Elements e .. e + 31 of q8_0: their words, and as signed bytes with their scale: w = d * q.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 lo = quad${ b }(${ qs // 4 }u + (e >> 5) * 2u), hi = quad${ b }(${ qs // 4 }u + (e >> 5) * 2u + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = lo[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = hi[i];
    raw[8] = at${ b }(${ d }u + (e >> 6));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) q[i / 4u][i % 4u] = int(raw[i]);
    return unpackHalf2x16(raw[8] >> (16u * ((e >> 5) & 1u))).x;
}
