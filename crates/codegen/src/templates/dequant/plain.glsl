// Eight neighbouring ${ dtype } elements in 16-byte loads; e is a multiple of 8.
void load8_${ b }(uint e, out float w[8]) {
//% if dtype == "f32"
    vec4 lo = uintBitsToFloat(wide${ b }(e >> 2)), hi = uintBitsToFloat(wide${ b }((e >> 2) + 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) { w[i] = lo[i]; w[i + 4u] = hi[i]; }
//% elif dtype == "f16"
    uvec4 p = wide${ b }(e >> 3);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) { vec2 h = unpackHalf2x16(p[i]); w[2u * i] = h.x; w[2u * i + 1u] = h.y; }
//% else
    uvec4 p = wide${ b }(e >> 3);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[2u * i] = uintBitsToFloat(p[i] << 16);
        w[2u * i + 1u] = uintBitsToFloat(p[i] & 0xffff0000u);
    }
//% endif
}
