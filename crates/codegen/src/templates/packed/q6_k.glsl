// Elements e .. e + 31 of q6_k as signed bytes and (scales, offsets) of their halves: w = d * sc * (q - 32).
vec4 packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u;
    uint low = ${ ql // 4 }u + block * 8u + (group >> 2) * 4u + (group & 1u) * 2u;
    uint high = ${ qh // 4 }u + block * 4u + (group >> 2) * 2u;
    uvec4 lo = quad${ b }(low), hi = quad${ b }(low + 1u), lo_bits = quad${ b }(high), hi_bits = quad${ b }(high + 1u);
    uint shift = 2u * (group & 2u), bits = 2u * (group & 3u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(((lo[i] >> shift) & 0x0f0f0f0fu) | (((lo_bits[i] >> bits) & 0x03030303u) << 4));
        q[i + 4u] = int(((hi[i] >> shift) & 0x0f0f0f0fu) | (((hi_bits[i] >> bits) & 0x03030303u) << 4));
    }
    float d = unpackHalf2x16(at${ b }(${ d }u + (block >> 1)) >> (16u * (block & 1u))).x;
    int sc = int(at${ b }(${ sc }u + block * 4u + (group >> 1)));
    int first = 16 * int(group & 1u);
    vec2 scale = d * vec2(bitfieldExtract(sc, first, 8), bitfieldExtract(sc, first + 8, 8));
    return vec4(scale, -32.0 * scale);
}
