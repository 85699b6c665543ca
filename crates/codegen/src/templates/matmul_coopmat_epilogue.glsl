// Each subgroup stages ${ side } rows of its own results at a time.
const uint strip0 = gl_SubgroupID * ${ rows * stride }u, half0 = row0 + gl_SubgroupID / ${ grid }u * ${ half_rows }u;
${ "[[unroll]] " if narrow }for (uint i = 0u; i < ${ matrices }u; ++i) {
//% if narrow
    [[unroll]] for (uint j = 0u; j < ${ wide }u; ++j) {
        const ${ half } narrow = ${ half }(sums[j * ${ matrices }u + i]);
        coopMatStore(narrow, slices, strip0 + j * ${ side // 8 }u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
    }
//% else
    ${ write | indent(4) }
//% endif
    subgroupBarrier();
//% set per_row = across // group
//% if narrow
    [[unroll]] for (uint q = 0u; q < ${ side * per_row // lanes }u; ++q) {
        const uint t = q * ${ lanes }u + gl_SubgroupInvocationID;
//% else
    for (uint t = gl_SubgroupInvocationID; t < ${ side * per_row }u; t += ${ lanes }u) {
//% endif
        const uint r = t / ${ per_row }u, c = t % ${ per_row }u;
        const uint m = half0 + i * ${ side }u + r, g = (column0 + gl_SubgroupID % ${ grid }u * ${ across }u) / ${ group }u + c;
        if (m < ${ m } && g < ${ columns }) {
//% if narrow
            const uvec4 found0 = slices[strip0 + r * ${ stride }u + c];
//% else
//% for anchor in found
            float ${ anchor.name }[${ group }];
//% if group % 4 == 0
            [[unroll]] for (uint q = 0u; q < ${ group // 4 }u; ++q) {
                const vec4 four = uintBitsToFloat(slices[strip0 + (${ anchor.row }u + r) * ${ stride }u + c * ${ group // 4 }u + q]);
                [[unroll]] for (uint j = 0u; j < 4u; ++j) ${ anchor.name }[q * 4u + j] = four[j];
            }
//% else
            [[unroll]] for (uint j = 0u; j < ${ group }u; ++j) ${ anchor.name }[j] = result((strip0 + (${ anchor.row }u + r) * ${ stride }u) * 4u + c * ${ group }u + j);
//% endif
//% endfor
//% endif
            ${ store | indent(12) }
        }
    }
    subgroupBarrier();
}
