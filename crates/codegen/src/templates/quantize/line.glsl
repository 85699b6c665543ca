// ${ name }: ${ top + 1 } levels from the smallest value to the largest.
void round_${ name }(float x[32], out uint words[${ words }]) {
    float low = x[0], high = x[0];
    [[unroll]] for (uint j = 1u; j < 32u; ++j) {
        low = min(low, x[j]);
        high = max(high, x[j]);
    }
    const float scale = (high - low) / ${ top }.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    uint levels[32];
    [[unroll]] for (uint j = 0u; j < 32u; ++j) {
        precise const float level = (x[j] - low) * inverse + 0.5;
        levels[j] = uint(clamp(to_int(level), 0, ${ top }));
    }
    [[unroll]] for (uint word = 0u; word < 4u; ++word) words[word] = nibbles_of(levels, word);
//% if top > 15
    words[4] = fifth_bits(levels);
//% endif
    // Rounded to f16 already: packing changes nothing.
    words[${ words - 1 }] = packHalf2x16(vec2(round_f16(scale), round_f16(low)));
}
