// q8_1: w = d * q; 32 elements a block, 32 signed bytes, f16 scale beside d times their sum.
float scale${ b }(uint block) { return unpackHalf2x16(at${ b }(${ ds }u + block)).x; }
float load${ b }(uint e) {
    int q = bitfieldExtract(int(at${ b }(${ qs }u + (e >> 2))), int(8u * (e & 3u)), 8);
    return scale${ b }(e >> 5) * float(q);
}
void load8_${ b }(uint e, out float w[8]) {
    float d = scale${ b }(e >> 5);
    int lo = int(at${ b }(${ qs }u + (e >> 2))), hi = int(at${ b }(${ qs }u + (e >> 2) + 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = d * float(bitfieldExtract(lo, int(8u * i), 8));
        w[i + 4u] = d * float(bitfieldExtract(hi, int(8u * i), 8));
    }
}
