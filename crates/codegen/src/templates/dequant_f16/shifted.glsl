// s * q + m of eight bytes q, in f32 and then rounded to f16.
uvec4 shifted(uint lo, uint hi, float s, float m) {
    float w[8];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s * float(bitfieldExtract(lo, int(8u * i), 8)) + m;
        w[i + 4u] = s * float(bitfieldExtract(hi, int(8u * i), 8)) + m;
    }
    return packed(w);
}
