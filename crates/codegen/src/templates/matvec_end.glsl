barrier();
//% if parts > 1
for (uint t = lane; t < ${ floats }u; t += ${ workgroup }u)
    [[unroll]] for (uint part = 1u; part < ${ parts }u; ++part) tile[t] += tile[part * ${ part_floats }u + t];
barrier();
//% endif
//% if reduce
${ reduce }
//% endif
for (uint t = lane; t < ${ m * tile }u; t += ${ workgroup }u) {
    const uint m = t / ${ tile }u, n = column0 + t % ${ tile }u;
    if (n < ${ n }) {
        ${ store | indent(8) }
    }
}
//% if blocks
barrier();
for (uint t = lane * ${ block }u; t < ${ m * tile }u; t += ${ workgroup * block }u) {
    const uint m = t / ${ tile }u, n0 = column0 + t % ${ tile }u;
    if (n0 < ${ n }) {
        float x[${ block }];
//% for r in blocks
        {
            [[unroll]] for (uint j = 0u; j < ${ block }u; ++j) x[j] = rounded${ loop.index0 }[t + j];
            uint words[${ r.words }];
            ${ r.function }(x, words);
            ${ r.store | indent(12) }
        }
//% endfor
    }
}
//% endif
