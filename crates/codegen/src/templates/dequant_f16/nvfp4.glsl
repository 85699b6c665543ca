// nvfp4 in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint sc; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 4)), at${ b }(${ sc }u + (e >> 6))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 q = r.q >> (e >> 1 & 4u);
    return signed_times(uvec2(fp4_bytes(q.x), fp4_bytes(q.y)), nvfp4_scale(bitfieldExtract(r.sc, int(e >> 1 & 24u), 8)));
}
