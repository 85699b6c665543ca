// tq1_0 in f16, eight elements: loaded, and when they have arrived, unpacked. The last 16 are four digits of 4 bytes.
struct Raw${ b } { uvec2 q; uint last, d; };
Raw${ b } raw${ b }(uint e) {
    uint j = e & 255u, pair = j < 160u ? j >> 3 & 3u : 4u + (j >> 3 & 1u);
    return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 8) * 6u + pair), at${ b }(${ qh }u + (e >> 8)), at${ b }(${ d }u + (e >> 9)));
}
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint j = e & 255u, digit = j < 160u ? j >> 5 : j < 240u ? (j - 160u) >> 4 : j >> 2 & 2u, power = 1u;
    bool last = j >= 240u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) power *= i < digit ? 3u : 1u;
    uint lo = tq1_bytes(last ? r.last : r.q.x, power), hi = tq1_bytes(last ? r.last : r.q.y, last ? 3u * power : power);
    return scaled(lo, hi, 1.0, unpackFloat2x16(r.d >> (e >> 4 & 16u)).x);
}
