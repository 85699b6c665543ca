//% macro k_tile()
${ store }
barrier();
//% if tiles > 1
const bool same = k0 + ${ bk }u < ${ k };
const uint next = same ? k0 + ${ bk }u : 0u, next_column = same ? column0 : min(column0 + ${ width }u, end_column - ${ width }u);
${ load }
//% elif last != "0u"
/*# Past the end, reload the last K tile: inside a branch the loads could not be hoisted above the products. #*/
const uint next = min(k0 + ${ depth * bk }u, ${ last });
${ load }
//% endif
${ products }
barrier();
//% endmacro
//% macro combination()
// The last K slice that is done sums the partials of all slices.
//% if split.batches == 1
const uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
//% else
const uint tile = (batch * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x + gl_WorkGroupID.x;
//% endif
const uint partial0 = tile * ${ split.slices * split.floats }u + ${ partials.first };
const uint to = partial0 + slice * ${ split.floats }u;
[[unroll]] for (uint i = 0u; i < ${ accumulators }u; ++i) ${ partials.store }
${ split.elect }
[[unroll]] for (uint i = 0u; i < ${ accumulators }u; ++i) {
    {
        const uint from = partial0;
        ${ partials.load }
    }
    ${ "[[unroll]] " if not split.varies }for (uint p = 1u; p < ${ "used" if split.varies else split.slices ~ "u" }; ++p) {
        const uint from = partial0 + p * ${ split.floats }u;
        ${ partials.add }
    }
}
//% endmacro
//% macro output_tile()
${ type } sums[${ accumulators }];
[[unroll]] for (uint i = 0u; i < ${ accumulators }u; ++i) sums[i] = ${ zero };
/*# Unrolled further, the loop would need more registers than there are. #*/
//% if depth == 1
[[dont_unroll]] for (uint k0 = ${ first }; k0 < ${ end }; k0 += ${ bk }u) {
    ${ k_tile() | indent(4) }
}
//% else
[[dont_unroll]] for (uint k1 = ${ first }; k1 < ${ end }; k1 += ${ depth * bk }u) {
    [[unroll]] for (uint s = 0u; s < ${ depth }u; ++s) {
        const uint k0 = k1 + s * ${ bk }u;
        if (k0 >= ${ end }) break;
        ${ k_tile() | indent(8) }
    }
}
//% endif
//% if split and split.varies
if (used > 1u) {
    ${ combination() | indent(4) }
}
//% elif split
${ combination() }
//% endif
${ epilogue }
//% endmacro
//% if tiles == 1
const uint column0 = ${ column0 };
//% else
// Several output tiles: the first K tile of the next is in flight while results are stored.
uint column0 = ${ column0 };
const uint end_column = column0 + ${ width * tiles }u;
//% endif
${ hoisted }
${ registers }
${ "if (" ~ first ~ " < " ~ end ~ ") " if may_be_empty }{
//% if depth == 1
    const uint next = ${ first }${ ", next_column = column0" if tiles > 1 };
    ${ load | indent(4) }
//% else
    [[unroll]] for (uint s = 0u; s < ${ depth }u; ++s) {
        const uint next = min(${ first } + s * ${ bk }u, ${ last });
        ${ load | indent(8) }
    }
//% endif
}
//% if tiles == 1
${ output_tile() }
//% else
[[dont_unroll]] for (; column0 < end_column; column0 += ${ width }u) {
    ${ output_tile() | indent(4) }
    barrier();
}
//% endif
