// A point of the iq2 formats (digits of 2 bits for 8, 25, 43) with its 8 sign bits, as signed bytes.
uvec2 iq2_bytes(uint point, uint signs) {
    uvec2 digits = uvec2(digits_of_2(point & 255u), digits_of_2(point >> 8));
    uvec2 levels = 0x08080808u + 17u * digits + ((digits >> 1) & 0x01010101u);
    return uvec2(signed_bytes(levels.x, signs), signed_bytes(levels.y, signs >> 4));
}
