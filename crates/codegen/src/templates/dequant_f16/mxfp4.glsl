// mxfp4 in f16, eight elements: loaded, and when they have arrived, unpacked.
struct Raw${ b } { uvec2 q; uint power; };
Raw${ b } raw${ b }(uint e) { return Raw${ b }(pair${ b }(${ qs // 2 }u + (e >> 5) * 2u + (e >> 3 & 1u)), at${ b }(${ e }u + (e >> 7))); }
uvec4 halves${ b }(Raw${ b } r, uint e) {
    uvec2 q = r.q >> (e >> 2 & 4u);
    // Powers below 2^-126 times any level are 0 in f16.
    uint power = bitfieldExtract(r.power, int(e >> 2 & 24u), 8);
    return signed_times(uvec2(fp4_bytes(q.x), fp4_bytes(q.y)), uintBitsToFloat((max(power, 1u) - 1u) << 23));
}
