// Four digits of 2 bits, one in each byte.
uint digits_of_2(uint x) {
    uint pairs = (x | x << 12) & 0x000f000fu;
    return (pairs | pairs << 6) & 0x03030303u;
}
