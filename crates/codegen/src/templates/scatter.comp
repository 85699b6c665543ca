#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// ${ comment }
void main() {
    const uint stride = gl_NumWorkGroups.x * ${ workgroup }u;
    ${ prelude | indent(4) }
    for (uint i = gl_GlobalInvocationID.x; i < ${ source }; i += stride) {
        ${ lines | indent(8) }
        const uint place = ${ place };
        if (place < ${ target }) {
            ${ store }
        }
    }
}
