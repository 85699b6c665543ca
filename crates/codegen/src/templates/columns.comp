#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
void main() {
    const uint lane = gl_LocalInvocationIndex % ${ columns }u, slice = gl_LocalInvocationIndex / ${ columns }u;
    ${ prelude | indent(4) }
    for (uint tile = gl_WorkGroupID.x; tile < ${ tiles }; tile += gl_NumWorkGroups.x) {
        const uint r = ${ r };
        ${ body | indent(8) }
    }
}
