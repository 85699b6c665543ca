${ head }
void main() {
//% if columns
    const uint lane = gl_LocalInvocationIndex % ${ columns }u, slice = gl_LocalInvocationIndex / ${ columns }u;
//% elif rows
    const uint lane = gl_SubgroupInvocationID;
//% else
    const uint lane = gl_LocalInvocationIndex;
//% endif
    ${ prelude | indent(4) }
//% if rows
    // One row per subgroup.
    const uint stride = gl_NumWorkGroups.x * ${ rows }u;
    for (uint row = gl_WorkGroupID.x * ${ rows }u + gl_SubgroupID; row < ${ count }; row += stride) {
        ${ body | indent(8) }
    }
//% else
    for (uint ${ name } = gl_WorkGroupID.x; ${ name } < ${ count }; ${ name } += gl_NumWorkGroups.x) {
        ${ body | indent(8) }
    }
//% endif
}
