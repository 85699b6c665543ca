// iq2_xs in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, sc, d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 4)), at${ b }(${ sc }u + (e >> 7)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint word = r.q >> (e << 1 & 16u);
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    float s = d * (0.5 + float(r.sc >> (e >> 2 & 28u) & 15u)) * 0.25;
    return signed_times(iq2_bytes(iq2_xs_entry(word & 511u), even_signs(word >> 9 & 127u, 0)), s);
}
