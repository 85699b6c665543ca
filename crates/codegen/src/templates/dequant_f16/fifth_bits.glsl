// Bits 0 to 3 as bit 4 of four bytes.
uint fifth_bits(uint x) { return ((x & 15u) * 0x00204081u & 0x01010101u) << 4; }
