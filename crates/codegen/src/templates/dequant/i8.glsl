// i8: w = q; signed bytes.
float load${ b }(uint e) { return float(bitfieldExtract(int(at${ b }(${ data }u + (e >> 2))), int(8u * (e & 3u)), 8)); }
void load8_${ b }(uint e, out float w[8]) {
    int lo = int(at${ b }(${ data }u + (e >> 2))), hi = int(at${ b }(${ data }u + (e >> 2) + 1u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        w[i] = float(bitfieldExtract(lo, int(8u * i), 8));
        w[i + 4u] = float(bitfieldExtract(hi, int(8u * i), 8));
    }
}
