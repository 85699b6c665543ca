// Groups of q3_k of which one is 64 elements behind the other, e .. e + 31 and e + 64 .. e + 95: their words, and as signed
// bytes with (scales, offsets) of their halves: w = d * (sc - 32) * (q - 4).
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 lo = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u), hi = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u + 1u);
    uvec4 bits_lo = quad${ b }(${ qh // 4 }u + (e >> 8) * 2u), bits_hi = quad${ b }(${ qh // 4 }u + (e >> 8) * 2u + 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
        raw[i + 8u] = bits_lo[i];
        raw[i + 12u] = bits_hi[i];
    }
    raw[16] = at${ b }(${ d }u + (e >> 9));
    [[unroll]] for (uint i = 0u; i < 3u; ++i) raw[i + 17u] = at${ b }(${ sc }u + (e >> 8) * 3u + i);
}
mat2x4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    uint shift = (e >> 4) & 2u, group = (e >> 5) & 5u, odd = (e >> 1) & 16u, upper = (e >> 5) & 4u;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint bits = raw[i + 8u] >> group;
        q[i / 4u][i % 4u] = int(((raw[i] >> shift) & 0x03030303u) | ((bits & 0x01010101u) << 2));
        q[i / 4u + 2u][i % 4u] = int(((raw[i] >> (shift + 4u)) & 0x03030303u) | (bits & 0x04040404u));
    }
    float d = unpackHalf2x16(raw[16] >> (16u * ((e >> 8) & 1u))).x;
    // Four bits of each scale, and the other two in the third word.
    uint s = raw[17] >> (odd + upper), t = raw[18] >> (odd + upper), high = raw[19] >> (odd + upper);
    uvec4 low = uvec4(s, s >> 8, t, t >> 8) & 15u, rest = uvec4(high, high >> 8, high >> 2, high >> 10) & 3u;
    vec4 scale = d * (vec4(low | (rest << 4)) - 32.0);
    return mat2x4(scale, -4.0 * scale);
}
