// iq4_xs in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q, head; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 5) * 2u + (e >> 3 & 1u)), pair${ b }(${ head // 2 }u + (e >> 8))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uint group = e >> 5 & 7u;
    uint sc = bitfieldExtract(r.head.y, int(4u * group), 4) | (bitfieldExtract(r.head.x, int(16u + 2u * group), 2) << 4);
    float s = unpackHalf2x16(r.head.x).x * (float(sc) - 32.0);
    return signed_times(uvec2(iq4_bytes(r.q >> (e >> 2 & 4u)).xy), s);
}
