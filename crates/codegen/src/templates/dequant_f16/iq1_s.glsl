// iq1_s in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, high, d; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 5)), at${ b }(${ qh }u + (e >> 6)), at${ b }(${ d }u + (e >> 9))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint l = e >> 3 & 3u, head = r.high >> (e >> 1 & 16u);
    uint point = iq1_entry(bitfieldExtract(r.q, int(8u * l), 8) | bitfieldExtract(head, int(3u * l), 3) << 8);
    float d = unpackHalf2x16(r.d >> (e >> 4 & 16u)).x;
    return signed_times(iq1_bytes(point, head >> 15 & 1u), d * float(2u * (head >> 12 & 7u) + 1u) * 0.125);
}
