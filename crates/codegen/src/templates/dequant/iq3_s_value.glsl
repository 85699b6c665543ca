// Element i of two points p.x of iq3_s (digits of 3 bits for 1, 3, 5 .. 15), its sign bit i of p.y.
float iq3_s_value(float s, uvec2 p, uint i) {
    uint level = 2u * bitfieldExtract(p.x, int(3u * i), 3) + 1u;
    return uintBitsToFloat(floatBitsToUint(s * float(level)) ^ ((p.y >> i) << 31));
}
