//% set first = "gl_SubgroupID" if by_subgroups else "lane"
// Each ${ "subgroup" if by_subgroups else "invocation" } reduces one group of ${ columns } columns at a time.
//% if rows == 1
if (${ first } == 0u) {
//% else
for (uint r = ${ first }; r < ${ rows }u; r += ${ "gl_NumSubgroups" if by_subgroups else workgroup ~ "u" }) {
//% endif
    const uint m = ${ "0u" if m == 1 else "r" if side_by_side == 1 else "r / " ~ side_by_side ~ "u" }, run = column0 / ${ columns }u${ "" if side_by_side == 1 else " + r" if m == 1 else " + r % " ~ side_by_side ~ "u" };
//% if inside
    if (${ inside }) {
        ${ lines | indent(8) }
    }
//% else
    ${ lines | indent(4) }
//% endif
}
barrier();
