// Element i of two points p.x of iq3_xxs (digits of 3 bits for 4, 12, 20 .. 52 and 62), its sign bit i of p.y.
float iq3_xxs_value(float s, uvec2 p, uint i) {
    uint digit = bitfieldExtract(p.x, int(3u * i), 3), level = 4u + 8u * digit + 2u * ((digit + 1u) >> 3);
    return uintBitsToFloat(floatBitsToUint(s * float(level)) ^ ((p.y >> i) << 31));
}
