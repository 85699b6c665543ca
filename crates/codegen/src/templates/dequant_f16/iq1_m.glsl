// iq1_m in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uint q, high; uvec2 sc; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(at${ b }(${ qs }u + (e >> 5)), at${ b }(${ qh }u + (e >> 6)), pair${ b }(${ sc // 2 }u + (e >> 8))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint l = e >> 3 & 3u, high = r.high >> (e >> 1 & 28u), group = e >> 4 & 15u;
    uint point = iq1_entry(bitfieldExtract(r.q, int(8u * l), 8) | (high & 7u) << 8);
    uint bits = (r.sc.x >> 12 & 15u) | (r.sc.x >> 24 & 240u) | (r.sc.y >> 4 & 0xf00u) | (r.sc.y >> 16 & 0xf000u);
    uint sc = (group < 8u ? r.sc.x : r.sc.y) >> (4u * (group & 4u) + 3u * (group & 3u)) & 7u;
    return signed_times(iq1_bytes(point, high >> 3 & 1u), unpackHalf2x16(bits).x * float(2u * sc + 1u) * 0.125);
}
