// iq2_s in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, signs, high, sc, d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 5)), at${ b }(${ signs }u + (e >> 5)), at${ b }(${ qh }u + (e >> 7)), at${ b }(${ sc }u + (e >> 7)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint point = iq2_s_entry(bitfieldExtract(r.q, int(e & 24u), 8) | (r.high >> ((e >> 2 & 24u) + (e >> 2 & 6u)) & 3u) << 8);
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    float s = d * (0.5 + float(r.sc >> (e >> 2 & 28u) & 15u)) * 0.25;
    return signed_times(iq2_bytes(point, r.signs >> (e & 24u)), s);
}
