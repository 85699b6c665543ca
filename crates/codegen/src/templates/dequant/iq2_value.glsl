// Element i of a point p.x of the iq2 formats (digits of 2 bits for 8, 25, 43), its sign bit i of p.y.
float iq2_value(float s, uvec2 p, uint i) {
    uint digit = bitfieldExtract(p.x, int(2u * i), 2), level = 8u + 17u * digit + (digit >> 1);
    return uintBitsToFloat(floatBitsToUint(s * float(level)) ^ ((p.y >> i) << 31));
}
