// Four bytes of two levels of 4 bits: byte j holds levels 4 word + j (low) and 16 above (high).
uint nibbles_of(uint levels[32], uint word) {
    uint bits = 0u;
    [[unroll]] for (uint j = 0u; j < 4u; ++j)
        bits |= ((levels[4u * word + j] & 15u) | (levels[4u * word + j + 16u] & 15u) << 4) << (8u * j);
    return bits;
}
//% if fifth
// The fifth bits of 32 levels.
uint fifth_bits(uint levels[32]) {
    uint bits = 0u;
    [[unroll]] for (uint j = 0u; j < 32u; ++j) bits |= (levels[j] >> 4) << j;
    return bits;
}
//% endif
