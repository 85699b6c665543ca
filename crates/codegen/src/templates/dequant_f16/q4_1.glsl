// q4_1 in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint dm; };
Raw${ b } raw${ b }(uint e) {
    return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 5) * 2u + (e >> 3 & 1u)), at${ b }(${ dm }u + (e >> 5)));
}
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 q = r.q >> (e >> 2 & 4u) & 0x0f0f0f0fu;
    vec2 s = unpackHalf2x16(r.dm);
    return shifted(q.x, q.y, s.x, s.y);
}
