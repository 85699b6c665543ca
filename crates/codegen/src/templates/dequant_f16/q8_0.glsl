// q8_0 in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 3)), at${ b }(${ d }u + (e >> 6))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    // Signed bytes plus 128.
    uvec2 q = r.q ^ 0x80808080u;
    return scaled(q.x, q.y, 128.0, unpackFloat2x16(r.d >> (e >> 1 & 16u)).x);
}
