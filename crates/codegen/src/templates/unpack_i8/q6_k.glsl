// Groups of q6_k of which one is 64 elements behind the other, e .. e + 31 and e + 64 .. e + 95: their words, and as signed
// bytes with (scales, offsets) of their halves: w = d * sc * (q - 32).
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uint low = ${ ql // 4 }u + (e >> 7) * 4u + ((e >> 4) & 2u), high = ${ qh // 4 }u + (e >> 7) * 2u + ((e >> 5) & 1u);
    uvec4 lo = quad${ b }(low), hi = quad${ b }(low + 1u), bits = quad${ b }(high);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
        raw[i + 8u] = bits[i];
    }
    raw[12] = at${ b }(${ d }u + (e >> 9));
    uvec2 sc = pair${ b }(${ sc // 2 }u + (e >> 7));
    [[unroll]] for (uint i = 0u; i < 2u; ++i) raw[i + 13u] = sc[i];
}
mat2x4 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[4]) {
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint bits = raw[i % 4u + 8u] >> (i / 4u * 2u);
        q[i / 4u][i % 4u] = int((raw[i] & 0x0f0f0f0fu) | ((bits & 0x03030303u) << 4));
        q[i / 4u + 2u][i % 4u] = int(((raw[i] >> 4) & 0x0f0f0f0fu) | (bits & 0x30303030u));
    }
    float d = unpackHalf2x16(raw[12] >> (16u * ((e >> 8) & 1u))).x;
    int s = int(raw[13]), t = int(raw[14]), odd = int((e >> 1) & 16u);
    vec4 scale = d * vec4(bitfieldExtract(s, odd, 8), bitfieldExtract(s, odd + 8, 8), bitfieldExtract(t, odd, 8), bitfieldExtract(t, odd + 8, 8));
    return mat2x4(scale, -32.0 * scale);
}
