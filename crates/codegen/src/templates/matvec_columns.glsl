//% macro each_column(lines)
//% if u
[[unroll]] for (uint ${ u } = 0u; ${ u } < ${ at_once }u; ++${ u }) {
    ${ "const uint pass = pass0 + u;" if not all_at_once }
    ${ lines | indent(4) }
}
//% else
${ lines }
//% endif
//% endmacro
//% macro products(lines)
const uint n = min(column0 + ${ column }, ${ last });
${ lines }
//% endmacro
//% macro step()
//% if by_rows
//% for part in by_rows
{
    ${ part.weights | indent(4) }
    ${ each_column(products(part.unpack)) | indent(4) }
    ${ part.products | indent(4) }
}
//% endfor
//% else
${ each_column(products(product)) }
//% endif
//% endmacro
//% macro reduction()
const uint c = ${ column };
[[unroll]] for (uint j = 0u; j < ${ accs }u; ++j) {
    ${ type } sum = acc[${ "j" if not u else u if accs == 1 else u ~ " * " ~ accs ~ "u + j" }];
    ${ reduce }
    if (${ first }${ inside }) tile[${ slice }j * ${ tile }u + c] = sum;
}
//% endmacro
//% macro reduction_of_several()
// Each invocation gives half of its sums to another and adds the other half of that one's, until it has one sum.
[[unroll]] for (uint first = 0u; first < ${ at_once * accs }u; first += ${ sums }u) {
    ${ type } sums[${ sums }];
    [[unroll]] for (uint i = 0u; i < ${ sums }u; ++i) sums[i] = acc[min(first + i, ${ at_once * accs - 1 }u)];
//% for mask in halves
    [[unroll]] for (uint i = 0u; i < ${ mask }u; ++i) {
        const bool upper = (gl_SubgroupInvocationID & ${ mask }u) != 0u;
        const ${ type } given = upper ? sums[i] : sums[i + ${ mask }u], kept = upper ? sums[i + ${ mask }u] : sums[i];
        sums[i] = kept + subgroupShuffleXor(given, ${ mask }u);
    }
//% endfor
    [[unroll]] for (uint mask = ${ sums }u; mask < ${ subgroup }u; mask *= 2u) sums[0] += subgroupShuffleXor(sums[0], mask);
    const uint i = first + gl_SubgroupInvocationID, j = i % ${ accs }u;
    ${ "const uint pass = " ~ ("" if all_at_once else "pass0 + ") ~ "i / " ~ accs ~ "u;" if at_once > 1 }
    const uint c = ${ column };
    if (gl_SubgroupInvocationID < ${ sums }u && i < ${ at_once * accs }u${ inside }) tile[${ slice }j * ${ tile }u + c] = sums[0];
}
//% endmacro
//% macro columns()
${ type } acc[${ at_once * accs }];
[[unroll]] for (uint j = 0u; j < ${ at_once * accs }u; ++j) acc[j] = ${ zero };
//% if steps == 1
${ step() }
//% elif end
for (uint k0 = lane * ${ elements }u; k0 < ${ end }; k0 += ${ stride }u) {
    ${ read_item | indent(4) }
    ${ step() | indent(4) }
}
//% elif prefetches_steps and depth > 1
for (uint along0 = 0u; along0 < ${ steps }u; along0 += ${ depth }u) {
    [[unroll]] for (uint s = 0u; s < ${ depth }u; ++s) {
        const uint along = along0 + s, item = ${ item };
        ${ read_item | indent(8) }
        ${ step() | indent(8) }
    }
}
//% else
for (uint along = 0u; along < ${ steps }u; ++along) {
    const uint item = ${ item };
    ${ read_item | indent(4) }
//% if not all_at_once and depth > 0
    const uint next_along = along + 1u < ${ steps }u ? along + 1u : 0u, next_pass = next_along == 0u ? ${ "pass + 1u : pass" if at_once == 1 else "pass0 + " ~ at_once ~ "u : pass0" };
//% endif
    ${ step() | indent(4) }
}
//% endif
//% if sums > 1
${ reduction_of_several() }
//% else
${ each_column(reduction()) }
//% endif
//% endmacro
//% set team = "The workgroup" if end else "Each subgroup" if slices == 1 else "Each group of " ~ slices ~ " subgroups"
// ${ team } reduces ${ "a column" if at_once == 1 else at_once ~ " columns" }${ " at a time" if at_once == 1 or not all_at_once }${ " in " ~ steps ~ " steps" if steps > 1 }.
//% if steps == 1 and not item_known
const uint item = ${ item };
${ read_item }
//% endif
//% if all_at_once
${ columns() }
//% else
const uint passes = ${ passes }u;
${ "[[unroll]] " if unrolled }for (uint ${ "pass = 0u; pass < passes; ++pass" if at_once == 1 else "pass0 = 0u; pass0 < passes; pass0 += " ~ at_once ~ "u" }) {
    ${ columns() | indent(4) }
}
//% endif
