// ${ name }: the first value of the largest magnitude becomes -${ half }, the end of the range.
void round_${ name }(float x[32], out uint words[${ words }]) {
    float largest = 0.0;
    [[unroll]] for (uint j = 0u; j < 32u; ++j) largest = abs(x[j]) > abs(largest) ? x[j] : largest;
    const float scale = largest * ${ -1.0 / half }, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    uint levels[32];
    [[unroll]] for (uint j = 0u; j < 32u; ++j) {
        precise const float level = x[j] * inverse + ${ half }.5;
        levels[j] = uint(clamp(to_int(level), 0, ${ 2 * half - 1 }));
    }
    [[unroll]] for (uint word = 0u; word < 4u; ++word) words[word] = nibbles_of(levels, word);
//% if half > 8
    words[4] = fifth_bits(levels);
//% endif
    // Rounded to f16 already: packing changes nothing.
    words[${ words - 1 }] = packHalf2x16(vec2(round_f16(scale), 0.0));
}
