// Eight times the elements of a point of the iq1 formats (digits of 2 bits for -1, 0, 1, shifted by 1/8, or -1/8 if `minus`
// is 1), as signed bytes. 128 more are no negative numbers; flipping bit 7 subtracts 128.
uvec2 iq1_bytes(uint point, uint minus) {
    uvec2 digits = uvec2(digits_of_2(point & 255u), digits_of_2(point >> 8));
    return (8u * digits + (121u - 2u * minus) * 0x01010101u) ^ 0x80808080u;
}
