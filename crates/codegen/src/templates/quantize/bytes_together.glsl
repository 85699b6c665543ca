//% if own == 1
// ${ format }, by the ${ neighbours } neighbours that have an element each: every fourth gets a word, the first what stands beside them.
// The largest magnitude becomes 127; halves away from zero.
void ${ name }(float x, out uint words[2]) {
    float most = is_nan(x) ? 0.0 : abs(x);
//% else
// ${ format }, by ${ neighbours } neighbours with ${ own } elements each: a word of each, and of the first what stands beside them. The
// largest magnitude becomes 127; halves away from zero.
void ${ name }(float x[${ own }], out uint words[2]) {
    float most = 0.0;
    [[unroll]] for (uint j = 0u; j < ${ own }u; ++j) most = max(most, abs(x[j]));
//% endif
    [[unroll]] for (uint mask = 1u; mask < ${ neighbours }u; mask *= 2u) most = max(most, subgroupShuffleXor(most, mask));
    const float scale = most / 127.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
//% if own == 1
    const int q = byte_of(x * inverse);
    words[0] = uint(q & 255) << (8u * (gl_SubgroupInvocationID & 3u));
    [[unroll]] for (uint mask = 1u; mask < 4u; mask *= 2u) words[0] |= subgroupShuffleXor(words[0], mask);
//% if sum
    int sum = q;
//% endif
//% else
    words[0] = 0u;
//% if sum
    int sum = 0;
//% endif
    [[unroll]] for (uint j = 0u; j < ${ own }u; ++j) {
        const int q = byte_of(x[j] * inverse);
//% if sum
        sum += q;
//% endif
        words[0] |= uint(q & 255) << (8u * j);
    }
//% endif
//% if sum
    [[unroll]] for (uint mask = 1u; mask < ${ neighbours }u; mask *= 2u) sum += subgroupShuffleXor(sum, mask);
//% endif
    // Rounded to f16 already: packing changes nothing.
    words[1] = packHalf2x16(vec2(round_f16(scale), ${ "round_f16(scale * float(sum))" if sum else "0.0" }));
}
