// q4_k in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uvec4 head; };
Raw${ b } raw${ b }(uint e) {
    return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 6) * 4u + (e >> 3 & 3u)), wide${ b }(${ head // 4 }u + (e >> 8)));
}
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 q = r.q >> (e >> 3 & 4u) & 0x0f0f0f0fu;
    vec2 s = scales_k(r.head, e >> 5 & 7u);
    return shifted(q.x, q.y, s.x, -s.y);
}
