// Exchanges groups of bits: those of v.x outside of the mask with those of v.y inside it.
uvec2 exchange(uvec2 v, uint mask, int by) {
    return uvec2((v.x & mask) | ((v.y << by) & ~mask), ((v.x >> by) & mask) | (v.y & ~mask));
}
// The levels of the nibbles of two words as signed bytes: the lower nibbles of each word, then the upper ones.
// 128 + level is 16 h + l. h is the nibble q, less 1 from 9 to 14. Bit k of l is a function of the four bits of q, which
// is computed for all nibbles at once: bits 0 and 1 of each nibble of a, b, c and d are the bits of q in the two words.
ivec4 iq4_bytes(uvec2 v) {
    uvec2 planes = exchange(v, 0x55555555u, 1);
    uint a = planes.x, b = planes.y, c = a >> 2, d = b >> 2, differ = (a ^ b) | (b ^ c);
    uint l3 = differ & (~d | (b ^ (a & ~c)));
    uint l2 = b ^ ((c & d) | (l3 & (c ^ d)));
    uint l1 = ((a & b) | (~a & c)) & ~(c & d);
    uint l0 = ~(((c & b) | (~c & a)) & ~(b ^ c ^ d));
    uvec2 even_odd = uvec2(exchange(uvec2(l0, l2), 0x33333333u, 2).x, exchange(uvec2(l1, l3), 0x33333333u, 2).x);
    uvec2 l = exchange(even_odd, 0x55555555u, 1);
    // Flipping bit 3 of h subtracts 128.
    uvec2 less = uvec2(d & differ, (d & differ) >> 1) & 0x11111111u, h = (v ^ 0x88888888u) - less;
    ivec2 first = ivec2(exchange(uvec2(l.x, h.x), 0x0f0f0f0fu, 4)), second = ivec2(exchange(uvec2(l.y, h.y), 0x0f0f0f0fu, 4));
    return ivec4(first.x, second.x, first.y, second.y);
}
