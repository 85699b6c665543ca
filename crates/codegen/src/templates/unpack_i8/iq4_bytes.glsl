// The levels of four nibbles, one in each byte.
int iq4_bytes(uint q) {
    uint bytes = 0u;
    [[unroll]] for (int i = 0; i < 32; i += 8) bytes |= uint(iq4_level(bitfieldExtract(q, i, 4)) & 255) << i;
    return int(bytes);
}
