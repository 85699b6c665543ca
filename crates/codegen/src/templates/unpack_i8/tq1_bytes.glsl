// A digit in base 3 of each of four bytes, which hold digits as the fraction of 256 that begins with them. `power` of 3
// brings the digit up. Two bytes at a time, in halves of a word.
uint tq1_bytes(uint x, uint power) {
    uvec2 halves = uvec2(x, x >> 8) & 0x00ff00ffu;
    halves = ((halves * power) & 0x00ff00ffu) * 3u;
    return ((halves.x >> 8) & 0x00030003u) | (halves.y & 0x03000300u);
}
