//% if by_subgroups
// Each subgroup takes a run of ${ columns } columns.
for (uint r = gl_SubgroupID; r < ${ rows }u; r += gl_NumSubgroups) {
//% else
// Each invocation takes a run of ${ columns } columns.
for (uint r = lane; r < ${ rows }u; r += ${ workgroup }u) {
//% endif
    const uint m = r / ${ side_by_side }u, run = column0 / ${ columns }u + r % ${ side_by_side }u;
//% if whole
    ${ lines | indent(4) }
//% if by_subgroups
    if (gl_SubgroupInvocationID == 0u) {
//% for store in stores
        ${ store }
//% endfor
    }
//% else
//% for store in stores
    ${ store }
//% endfor
//% endif
//% else
    if (run < ${ count }) {
        ${ lines | indent(8) }
//% if by_subgroups
        if (gl_SubgroupInvocationID == 0u) {
//% for store in stores
            ${ store }
//% endfor
        }
//% else
//% for store in stores
        ${ store }
//% endfor
//% endif
    }
//% endif
}
barrier();
