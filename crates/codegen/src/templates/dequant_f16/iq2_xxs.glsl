// iq2_xxs in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 5)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint l = e >> 3 & 3u, point = iq2_xxs_entry(bitfieldExtract(r.q.x, int(8u * l), 8));
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    return signed_times(iq2_bytes(point, even_signs(r.q.y, int(l))), d * (0.5 + float(r.q.y >> 28)) * 0.25);
}
