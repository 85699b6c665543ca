// Element i of a point p.x of the iq1 formats (digits of 2 bits for -1, 0, 1), shifted by 1/8, or -1/8 if p.y is 1.
float iq1_value(float s, uvec2 p, uint i) {
    return s * (float(bitfieldExtract(p.x, int(2u * i), 2)) - (p.y == 0u ? 0.875 : 1.125));
}
