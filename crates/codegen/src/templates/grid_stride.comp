${ head }
${ comment }
void main() {
    const uint stride = gl_NumWorkGroups.x * ${ workgroup }u;
    ${ prelude | indent(4) }
    for (uint ${ name } = gl_GlobalInvocationID.x; ${ name } < ${ count }; ${ name } += stride) {
        ${ body | indent(8) }
    }
}
