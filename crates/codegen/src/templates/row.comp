${ head }
void main() {
//% if columns
    const uint lane = gl_LocalInvocationIndex % ${ columns }u, slice = gl_LocalInvocationIndex / ${ columns }u;
//% else
    const uint lane = gl_LocalInvocationIndex;
//% endif
    ${ prelude | indent(4) }
    for (uint ${ name } = gl_WorkGroupID.x; ${ name } < ${ count }; ${ name } += gl_NumWorkGroups.x) {
        ${ body | indent(8) }
    }
}
