// Elements e .. e + 31 of mxfp4: their words, and as signed bytes with their scale: w = 2^(e - 128) * level, a power below
// 2^-126 being 0.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ e }u + (e >> 7));
}
float packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[0][i] = fp4_bytes(raw[i]);
        q[1][i] = fp4_bytes(raw[i] >> 4);
    }
    uint power = bitfieldExtract(raw[4], int((e >> 2) & 24u), 8);
    return uintBitsToFloat((max(power, 1u) - 1u) << 23);
}
