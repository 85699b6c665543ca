// Half of an 8-bit float (e4m3) whose sign is ignored, 0x7f for zero.
float nvfp4_scale(uint x) {
    uint exponent = x >> 3 & 15u;
    float normal = uintBitsToFloat((exponent + 119u) << 23 | (x & 7u) << 20);
    return x == 127u ? 0.0 : exponent == 0u ? float(x & 7u) / 1024.0 : normal;
}
