// Groups of q3_k of which one is 64 elements behind the other, e .. e + 31 and e + 64 .. e + 95: their words, and as signed
// bytes with (scales, offsets) of their halves: w = d * (sc - 32) * (q - 4).
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uint share = (e >> 7) * 2u + ((e >> 5) & 1u);
    uvec4 low = quad${ b }(${ qs // 4 }u + share);
    uvec2 bits = pair${ b }(${ qh // 2 }u + share);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = low[i];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i + 4u] = bits[i];
    raw[6] = at${ b }(${ d }u + (e >> 9));
    [[unroll]] for (uint i = 0u; i < 3u; ++i) raw[i + 7u] = at${ b }(${ sc }u + (e >> 8) * 3u + i);
}
mat2x4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint low = raw[i % 4u] >> (i / 4u * 2u), bits = raw[i % 2u + 4u] >> (i / 4u * 4u + i / 2u % 2u);
        q[i / 4u][i % 4u] = int((low & 0x03030303u) | ((bits & 0x01010101u) << 2));
        q[i / 4u + 2u][i % 4u] = int(((low >> 4) & 0x03030303u) | (bits & 0x04040404u));
    }
    float d = unpackHalf2x16(raw[6] >> (16u * ((e >> 8) & 1u))).x;
    // Four bits of each scale, and the other two in the third word.
    uint at = ((e >> 1) & 16u) + ((e >> 5) & 4u);
    uint s = raw[7] >> at, t = raw[8] >> at, high = raw[9] >> at;
    uvec4 low = uvec4(s, s >> 8, t, t >> 8) & 15u, rest = uvec4(high, high >> 8, high >> 2, high >> 10) & 3u;
    vec4 scale = d * (vec4(low | (rest << 4)) - 32.0);
    return mat2x4(scale, -4.0 * scale);
}
