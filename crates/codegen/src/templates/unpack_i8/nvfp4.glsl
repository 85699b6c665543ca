// Elements e .. e + 31 of nvfp4: their words, and as signed bytes with the scales of their halves: w = sc / 2 * level.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    raw[4] = at${ b }(${ sc }u + (e >> 6));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        q[0][i] = fp4_bytes(raw[i]);
        q[0][i + 2u] = fp4_bytes(raw[i] >> 4);
        q[1][i] = fp4_bytes(raw[i + 2u]);
        q[1][i + 2u] = fp4_bytes(raw[i + 2u] >> 4);
    }
    vec2 scale;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        // An 8-bit float (e4m3) whose sign is ignored, 0x7f for zero.
        uint x = bitfieldExtract(raw[4], int(((e >> 1) & 16u) + 8u * i), 8), exponent = (x >> 3) & 15u;
        float normal = uintBitsToFloat(((exponent + 119u) << 23) | ((x & 7u) << 20));
        scale[i] = x == 127u ? 0.0 : exponent == 0u ? float(x & 7u) / 1024.0 : normal;
    }
    return vec4(scale, 0.0, 0.0);
}
