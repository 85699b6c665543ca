// iq3_s in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, high, signs, sc, d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 4)), at${ b }(${ qh }u + (e >> 7)), at${ b }(${ signs }u + (e >> 5)), at${ b }(${ sc }u + (e >> 8)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint both = r.q >> (e << 1 & 16u), high = r.high >> ((e >> 2 & 24u) + (e >> 2 & 6u));
    uvec2 points = uvec2(iq3_s_entry((both & 255u) | (high & 1u) << 8), iq3_s_entry((both >> 8 & 255u) | (high & 2u) << 7));
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    return signed_times(iq3_s_bytes(points, r.signs >> (e & 24u)), d * float(1u + 2u * bitfieldExtract(r.sc, int(e >> 3 & 28u), 4)));
}
