// Two points of iq3_s (digits of 3 bits for 1, 3, 5 .. 15) with their 8 sign bits, as signed bytes.
uvec2 iq3_s_bytes(uvec2 points, uint signs) {
    uvec2 levels = 2u * uvec2(digits_of_3(points.x), digits_of_3(points.y)) + 0x01010101u;
    return uvec2(signed_bytes(levels.x, signs), signed_bytes(levels.y, signs >> 4));
}
