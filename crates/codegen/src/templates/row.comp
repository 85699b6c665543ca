#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    for (uint row = gl_WorkGroupID.x; row < ${ rows }; row += gl_NumWorkGroups.x) {
        ${ body | indent(8) }
    }
}
