// Four bytes from 1 to 127, negated where a bit of `signs` is set: a negated byte is its complement plus 1, without a carry.
uint signed_bytes(uint x, uint signs) {
    uint negative = (signs & 15u) * 0x00204081u & 0x01010101u;
    return (x ^ negative * 255u) + negative;
}
