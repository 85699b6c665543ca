//% if deferred
${ deferred }
//% endif
barrier();
//% if slices > 1
for (uint t = lane; t < ${ floats }u; t += ${ workgroup }u)
    [[unroll]] for (uint slice = 1u; slice < ${ slices }u; ++slice) tile[t] += tile[slice * ${ slice_floats }u + t];
barrier();
//% endif
//% if reduce
${ reduce }
//% endif
for (uint t = ${ t }; t < ${ m * tile }u; t += ${ workgroup }u) {
    const uint m = t / ${ tile }u, n = column0 + t % ${ tile }u;
    if (n < ${ n }${ exists }) {
        ${ store | indent(8) }
    }
}
//% if blocks
barrier();
//% for r in blocks
//% if r.by_eight
// Eight adjacent invocations quantize one block.
for (uint t = (gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID) * 4u; t < ${ m * tile }u; t += ${ workgroup * 4 }u) {
    const uint m = t / ${ tile }u, n0 = column0 + t % ${ tile }u / ${ block }u * ${ block }u, part = t / 4u % 8u;
    if (n0 < ${ n }${ exists }) {
        float x[4];
        [[unroll]] for (uint j = 0u; j < 4u; ++j) x[j] = rounded${ loop.index0 }[t + j];
        uint words[2];
//% else
for (uint t = lane * ${ block }u; t < ${ m * tile }u; t += ${ workgroup * block }u) {
    const uint m = t / ${ tile }u, n0 = column0 + t % ${ tile }u;
    if (n0 < ${ n }${ exists }) {
        float x[${ block }];
        [[unroll]] for (uint j = 0u; j < ${ block }u; ++j) x[j] = rounded${ loop.index0 }[t + j];
        uint words[${ r.words }];
//% endif
        ${ r.function }(x, words);
        ${ r.store | indent(8) }
    }
}
//% endfor
//% endif
