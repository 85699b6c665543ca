// Eight neighbouring ${ dtype } elements that were loaded at once.
void widen8_${ b }(uvec4 p, out float w[8]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
//% if dtype == "f16"
        vec2 pair = unpackHalf2x16(p[i]);
//% else
        vec2 pair = uintBitsToFloat(uvec2(p[i] << 16, p[i] & 0xffff0000u));
//% endif
        w[2u * i] = pair.x;
        w[2u * i + 1u] = pair.y;
    }
}
