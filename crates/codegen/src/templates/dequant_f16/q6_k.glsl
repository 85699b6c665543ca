// q6_k in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q, high; uint sc, d; };
Raw${ b } raw${ b }(uint e) {
    uvec2 q = pair${ b }(${ ql // 2 }u + (e >> 7) * 8u + (e >> 3 & 7u));
    uvec2 high = pair${ b }(${ qh // 2 }u + (e >> 7) * 4u + (e >> 4 & 2u) + (e >> 3 & 1u));
    return Raw${ b }(q, high, at${ b }(${ sc }u + (e >> 6)), at${ b }(${ d }u + (e >> 9)));
}
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 q = r.q >> (e >> 4 & 4u) & 0x0f0f0f0fu | (r.high >> ((e >> 3 & 2u) + (e >> 4 & 4u)) & 0x03030303u) << 4;
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x, s = d * float(bitfieldExtract(int(r.sc), int(e >> 1 & 24u), 8));
    float w[8];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s * (float(bitfieldExtract(q.x, int(8u * i), 8)) - 32.0);
        w[i + 4u] = s * (float(bitfieldExtract(q.y, int(8u * i), 8)) - 32.0);
    }
    return packed(w);
}
