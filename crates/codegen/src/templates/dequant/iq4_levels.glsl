// The levels of a nibble of iq4_nl and iq4_xs, -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, four a word.
// Not an array: drivers give each invocation its own copy of one that is indexed.
int iq4_level(uint q) {
    uint low = q < 4u ? 0xbfad9881u : 0xf6eaddcfu, high = q < 12u ? 0x26190d01u : 0x71594535u;
    return bitfieldExtract(int(q < 8u ? low : high), int(8u * (q & 3u)), 8);
}
