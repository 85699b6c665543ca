// Two halves of neighbouring groups of q6_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * sc * (q - 32).
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uint low = ${ ql // 4 }u + (e >> 7) * 4u + ((e >> 5) & 1u);
    uvec4 lo = quad${ b }(low), hi = quad${ b }(low + 2u), bits = quad${ b }(${ qh // 4 }u + (e >> 7) * 2u + ((e >> 5) & 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = lo[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = hi[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 8u] = bits[i];
    raw[12] = at${ b }(${ d }u + (e >> 9));
    raw[13] = at${ b }(${ sc }u + (e >> 6));
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    uint shift = (e >> 4) & 4u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(((raw[i] >> shift) & 0x0f0f0f0fu) | (((raw[i + 8u] >> shift) & 0x03030303u) << 4));
        q[i + 4u] = int(((raw[i + 4u] >> shift) & 0x0f0f0f0fu) | (((raw[i + 8u] >> shift) & 0x0c0c0c0cu) << 2));
    }
    float d = unpackHalf2x16(raw[12] >> (16u * ((e >> 8) & 1u))).x;
    int sc = int(raw[13]), first = int((e >> 2) & 8u);
    vec2 scale = d * vec2(bitfieldExtract(sc, first, 8), bitfieldExtract(sc, first + 16, 8));
    return vec4(scale, -32.0 * scale);
}
