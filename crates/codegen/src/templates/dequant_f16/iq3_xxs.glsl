// iq3_xxs in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, sc, d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 4)), at${ b }(${ sc }u + (e >> 5)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint both = r.q >> (e << 1 & 16u);
    uvec2 points = uvec2(iq3_xxs_entry(both & 255u), iq3_xxs_entry(both >> 8 & 255u));
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    return signed_times(iq3_xxs_bytes(points, even_signs(r.sc, int(e >> 3 & 3u))), d * (0.5 + float(r.sc >> 28)) * 0.5);
}
