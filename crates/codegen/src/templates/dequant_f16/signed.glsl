// s * q of eight signed bytes q, in f32 and then rounded to f16.
uvec4 signed_times(uvec2 q, float s) {
    float w[8];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = s * float(bitfieldExtract(int(q.x), int(8u * i), 8));
        w[i + 4u] = s * float(bitfieldExtract(int(q.y), int(8u * i), 8));
    }
    return packed(w);
}
