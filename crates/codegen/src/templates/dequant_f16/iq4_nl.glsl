// iq4_nl in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 5) * 2u + (e >> 3 & 1u)), at${ b }(${ d }u + (e >> 6))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    // Signed bytes plus 128.
    uvec2 q = uvec2(iq4_bytes(r.q >> (e >> 2 & 4u)).xy) ^ 0x80808080u;
    return scaled(q.x, q.y, 128.0, unpackFloat2x16(r.d >> (e >> 1 & 16u)).x);
}
