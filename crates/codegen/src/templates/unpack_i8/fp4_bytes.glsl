// Twice four 4-bit floats (e2m1), one in each byte. Of the size's bits c b a: 4 b + 2 c + a as it stands, 1 more for 101
// and 111, 2 more for 11., and 2 more for 111. A negated byte is its complement plus 1, but 0 stays 0, without a carry.
int fp4_bytes(uint q) {
    uint v = q & 0x07070707u, top = (q >> 2) & 0x01010101u;
    uint odd = top & q, upper = top & (q >> 1);
    uint size = v + odd + ((upper + (upper & q)) << 1);
    uint sign = (q >> 3) & 0x01010101u & ((size + 0x7f7f7f7fu) >> 7);
    return int((size ^ (sign * 255u)) + sign);
}
