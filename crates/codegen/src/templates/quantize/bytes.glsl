// ${ name }: the largest magnitude becomes 127; halves away from zero.
void round_${ name }(float x[32], out uint words[${ words }]) {
    float most = 0.0;
    [[unroll]] for (uint j = 0u; j < 32u; ++j) most = max(most, abs(x[j]));
    const float scale = most / 127.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
//% if sum
    int sum = 0;
//% endif
    [[unroll]] for (uint word = 0u; word < 8u; ++word) {
        words[word] = 0u;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            const int q = byte_of(x[4u * word + j] * inverse);
//% if sum
            sum += q;
//% endif
            words[word] |= uint(q & 255) << (8u * j);
        }
    }
    // Rounded to f16 already: packing changes nothing.
    words[8] = packHalf2x16(vec2(round_f16(scale), ${ "round_f16(scale * float(sum))" if sum else "0.0" }));
}
