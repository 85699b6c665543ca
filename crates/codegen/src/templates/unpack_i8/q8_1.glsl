// Block of q8_1: its halves as signed bytes, and its scale.
float block${ b }(uint block, out ivec4 lo, out ivec4 hi) {
    lo = ivec4(quad${ b }(${ qs // 4 }u + block * 2u));
    hi = ivec4(quad${ b }(${ qs // 4 }u + block * 2u + 1u));
    return unpackHalf2x16(at${ b }(${ ds }u + block)).x;
}
