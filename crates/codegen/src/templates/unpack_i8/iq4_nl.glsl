// Elements e .. e + 31 of iq4_nl: their words, and as signed bytes with their scale: w = d * level.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ d }u + (e >> 6));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    ivec4 first = iq4_bytes(uvec2(raw[0], raw[1])), second = iq4_bytes(uvec2(raw[2], raw[3]));
    q[0] = ivec4(first.xy, second.xy);
    q[1] = ivec4(first.zw, second.zw);
    return unpackHalf2x16(raw[4] >> (16u * ((e >> 5) & 1u))).x;
}
