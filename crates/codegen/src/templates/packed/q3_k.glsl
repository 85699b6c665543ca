// Two halves of neighbouring groups of q3_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * (sc - 32) * (q - 4).
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 7) * 2u + ((e >> 5) & 1u)), bit = quad${ b }(${ qh // 4 }u + (e >> 8) * 2u + ((e >> 5) & 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = bit[i];
    raw[8] = at${ b }(${ d }u + (e >> 9));
    raw[9] = at${ b }(${ sc }u + (e >> 8) * 3u + ((e >> 6) & 1u));
    raw[10] = at${ b }(${ sc }u + (e >> 8) * 3u + 2u);
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    uint pair = (e >> 6) & 3u, shift = 4u * (pair & 1u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint bits = raw[i + 4u] >> (2u * pair);
        q[i] = int(((raw[i] >> shift) & 0x03030303u) | ((bits & 0x01010101u) << 2));
        q[i + 4u] = int(((raw[i] >> (shift + 2u)) & 0x03030303u) | ((bits & 0x02020202u) << 1));
    }
    float d = unpackHalf2x16(raw[8] >> (16u * ((e >> 8) & 1u))).x;
    uint byte = (e >> 2) & 8u, low = raw[9] >> (byte + 2u * (pair & 2u)), high = raw[10] >> (byte + 2u * pair);
    uvec2 s = uvec2((low & 15u) | ((high & 3u) << 4), ((low >> 16) & 15u) | (((high >> 16) & 3u) << 4));
    vec2 scale = d * (vec2(s) - 32.0);
    return vec4(scale, -4.0 * scale);
}
