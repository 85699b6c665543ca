//% macro store(to_byte)
const float inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
const uint half_at = (word0 < 4u ? 0u : ${ upper }u) + ${ place };
//% if not several
int sum = 0;
//% endif
[[unroll]] for (uint j = 0u; j < ${ words }u; ++j) {
    uint q[4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
//% if to_byte
        q[i] = ${ to_byte }(x[4u * j + i] * inverse);
//% else
        precise float y = x[4u * j + i] * inverse, even = y + 12582912.0;
        q[i] = floatBitsToUint(even);
        doubt |= q[i] ^ floatBitsToUint(fma(y, 1.00000011920928955078125, 12582912.0)) | q[i] & 0x04000000u;
//% endif
    }
    const int word = int((q[0] & 255u) | (q[1] & 255u) << 8 | (q[2] & 255u) << 16 | q[3] << 24);
//% if not several
    sum += dotPacked4x8EXT(word, 0x01010101);
//% endif
    x_bytes[half_at][(word0 + j) & 3u] = word;
}
//% if not several
//% for mask in sum_masks
sum += subgroupShuffleXor(sum, ${ mask }u);
//% endfor
//% endif
const float d = round_f16(scale);
if (word0 == 0u) x_scale[${ place }] = d;
//% if not several
if ((word0 & 3u) == 0u) x_sum[block][word0 / 4u] = d * float(sum);
//% endif
//% endmacro
//% macro store_exact()
// Magnitudes are compared as bits, which shows infinity and NaN. NaN counts as 0; next to infinity all else is 0.
uint size = 0u;
[[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) size = max(size, floatBitsToUint(x[j]) & 0x7fffffffu);
if (size >= 0x7f800000u) {
    size = 0u;
    [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) {
        const uint bits = floatBitsToUint(x[j]) & 0x7fffffffu;
        if (bits <= 0x7f800000u) size = max(size, bits);
        if (bits >= 0x7f800000u) x[j] = 0.0;
    }
}
//% for mask in masks
size = max(size, subgroupShuffleXor(size, ${ mask }u));
//% endfor
const float scale = uintBitsToFloat(size) / 127.0;
${ store("low_byte") }
//% endmacro
//% macro groups(exact)
//% if cached
{
    const uint block = lane / ${ lanes }u, word0 = lane % ${ lanes }u * ${ words }u;
//% else
for (uint i = lane; i < ${ group_count }u; i += ${ workgroup }u) {
    const uint m = i / ${ of_row }u, block = i / ${ lanes }u, word0 = i % ${ lanes }u * ${ words }u;
    ${ row | indent(4) }
    const uint g = i % ${ of_row }u;
//% endif
    float x[${ elements }], most = 0.0;
    ${ group | indent(4) }
    [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) most = max(most, ${ "is_nan(x[j]) ? 0.0 : " if exact }abs(x[j]));
//% for mask in masks
    most = max(most, subgroupShuffleXor(most, ${ mask }u));
//% endfor
    const float scale = most / 127.0;
    ${ store("byte_of" if exact) | indent(4) }
}
//% endmacro
// Quantizes the activations. Each invocation has ${ elements } elements at a time, so that ${ lanes } share a block.
//% if cached and more_registers
{
    const uint block = lane / ${ lanes }u, word0 = lane % ${ lanes }u * ${ words }u;
    float x[${ elements }];
    ${ group | indent(4) }
    ${ store_exact() | indent(4) }
}
//% elif more_registers
// All loads are issued before the first result is used.
float loaded[${ rounds }][${ elements }];
[[unroll]] for (uint t = 0u; t < ${ rounds }u; ++t) {
    const uint i = min(lane + t * ${ workgroup }u, ${ group_count - 1 }u), m = i / ${ of_row }u, g = i % ${ of_row }u;
    float x[${ elements }];
    ${ row | indent(4) }
    ${ group | indent(4) }
    [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) loaded[t][j] = x[j];
}
[[unroll]] for (uint t = 0u; t < ${ rounds }u; ++t) {
    const uint i = lane + t * ${ workgroup }u, block = i / ${ lanes }u, word0 = i % ${ lanes }u * ${ words }u;
    if (i >= ${ group_count }u) continue;
    float x[${ elements }] = loaded[t];
    ${ store_exact() | indent(4) }
}
//% else
// Rounds by adding 1.5 * 2^23, which leaves the integer in the low bits, with halves to even. In doubt the subgroup
// repeats the exact way: a value that is larger by one part in 2^23 rounds up from a half. If that is another integer,
// or if a value is infinite or NaN (which set this bit), `doubt` is not 0.
uint doubt = 0u;
${ groups(false) }
if (subgroupAny(doubt != 0u)) {
    ${ groups(true) | indent(4) }
}
//% endif
barrier();
