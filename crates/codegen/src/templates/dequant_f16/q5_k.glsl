// q5_k in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q, high; uvec4 head; };
Raw${ b } raw${ b }(uint e) {
    uvec2 q = pair${ b }(${ qs // 2 }u + (e >> 6) * 4u + (e >> 3 & 3u));
    return Raw${ b }(q, pair${ b }(${ qh // 2 }u + (e >> 6)), wide${ b }(${ head // 4 }u + (e >> 8)));
}
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint group = e >> 5 & 7u;
    uvec2 q = r.q >> (4u * (group & 1u)) & 0x0f0f0f0fu | (r.high >> ((e >> 2 & 6u) + (e >> 5 & 1u)) & 0x01010101u) << 4;
    vec2 s = scales_k(r.head, group);
    return shifted(q.x, q.y, s.x, -s.y);
}
