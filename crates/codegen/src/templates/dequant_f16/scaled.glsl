// d * (q - zero) of eight bytes q in f16. The bits 0x6400 + q are those of the float 1024 + q, of which q - zero is an exact
// difference; its product is rounded once, as an exact one in f32 would be.
uvec2 pairs(uint bytes) {
    return uvec2((bytes & 0xffu) | (bytes & 0xff00u) << 8, (bytes >> 16 & 0xffu) | (bytes >> 8 & 0xff0000u)) | 0x64006400u;
}
uvec4 scaled(uint lo, uint hi, float zero, float16_t d) {
    uvec4 q = uvec4(pairs(lo), pairs(hi));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) q[i] = packFloat2x16((unpackFloat2x16(q[i]) - float16_t(1024.0 + zero)) * d);
    return q;
}
