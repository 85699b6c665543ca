${ head }
${ comment }
void main() {
    const uint stride = gl_NumWorkGroups.x * ${ workgroup }u;
    ${ prelude | indent(4) }
    for (uint ${ name } = gl_GlobalInvocationID.x; ${ name } < ${ count }; ${ name } += stride) {
        ${ body | indent(8) }
    }
//% if tail
    // The elements after the last group.
    if (gl_GlobalInvocationID.x < ${ tail.rest }u) {
        const uint i = ${ tail.first } + gl_GlobalInvocationID.x;
        ${ tail.body | indent(8) }
    }
//% endif
}
