// Four digits of 3 bits, one in each byte.
uint digits_of_3(uint x) {
    uint pairs = (x | x << 10) & 0x003f003fu;
    return (pairs | pairs << 5) & 0x07070707u;
}
