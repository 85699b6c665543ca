// Twice the 4-bit floats (e2m1) of mxfp4 and nvfp4: 0 1 2 3 4 6 8 12, then the same negated.
int fp4_level(uint q) {
    int size = int((0xc8643210u >> (4u * (q & 7u))) & 15u);
    return q < 8u ? size : -size;
}
