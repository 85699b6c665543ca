// q3_k in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q, high; uint d, sc, rest; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 7) * 4u + (e >> 4 & 2u) + (e >> 3 & 1u)), pair${ b }(${ qh // 2 }u + (e >> 7) * 2u + (e >> 5 & 1u)), at${ b }(${ d }u + (e >> 9)), at${ b }(${ sc }u + (e >> 8) * 3u + (e >> 6 & 1u)), at${ b }(${ sc }u + (e >> 8) * 3u + 2u)); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 low = r.q >> ((e >> 3 & 2u) + (e >> 4 & 4u)), high = r.high >> ((e >> 3 & 1u) + (e >> 2 & 4u) + (e >> 5 & 2u));
    uvec2 q = (low & 0x03030303u) | (high & 0x01010101u) << 2;
    // The group of 16 elements: four bits of its scale, and two.
    uint s = e >> 4 & 15u, sc = (r.sc >> (8u * (s & 3u) + (s & 8u) / 2u) & 15u) | (r.rest >> (8u * (s & 3u) + 2u * (s >> 2)) & 3u) << 4;
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    // q - 4: 124 more is no negative number, and flipping bit 7 subtracts 128.
    return signed_times((q + 0x7c7c7c7cu) ^ 0x80808080u, d * (float(sc) - 32.0));
}
