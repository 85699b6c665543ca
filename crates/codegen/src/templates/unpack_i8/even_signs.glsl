// Eight signs: `l`th seven bits of a word, and an eighth that makes their number even.
uint even_signs(uint word, int l) {
    uint signs = bitfieldExtract(word, 7 * l, 7);
    return signs | (uint(bitCount(signs)) << 7);
}
