// Elements e .. e + 31 of nvfp4 as signed bytes and the scales of their halves: w = sc / 2 * level.
vec4 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 6, group = (e >> 4) & 3u;
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        q[i] = fp4_bytes(qs[i]);
        q[i + 2u] = fp4_bytes(qs[i] >> 4);
        q[i + 4u] = fp4_bytes(qs[i + 2u]);
        q[i + 6u] = fp4_bytes(qs[i + 2u] >> 4);
    }
    vec2 scale;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        // An 8-bit float (e4m3) whose sign is ignored, 0x7f for zero.
        uint x = bitfieldExtract(at${ b }(${ sc }u + block), int(8u * (group + i)), 8), exponent = (x >> 3) & 15u;
        float normal = uintBitsToFloat(((exponent + 119u) << 23) | ((x & 7u) << 20));
        scale[i] = x == 127u ? 0.0 : exponent == 0u ? float(x & 7u) / 1024.0 : normal;
    }
    return vec4(scale, 0.0, 0.0);
}
