// Two points of iq3_xxs (digits of 3 bits for 4, 12, 20 .. 52 and 62) with their 8 sign bits, as signed bytes.
uvec2 iq3_xxs_bytes(uvec2 points, uint signs) {
    uvec2 digits = uvec2(digits_of_3(points.x), digits_of_3(points.y)), sevens = digits & (digits >> 1) & (digits >> 2);
    uvec2 levels = 0x04040404u + 8u * digits + 2u * (sevens & 0x01010101u);
    return uvec2(signed_bytes(levels.x, signs), signed_bytes(levels.y, signs >> 4));
}
