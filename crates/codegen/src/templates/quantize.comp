${ head }
// ${ comment }
void main() {
    const uint stride = gl_NumWorkGroups.x * ${ workgroup }u;
    ${ prelude | indent(4) }
    for (uint block = gl_GlobalInvocationID.x; block < ${ blocks }; block += stride) {
        const uint first = block * ${ block }u;
        float x[${ block }];
        for (uint j = 0u; j < ${ block }u; ++j) {
            const uint i = first + j;
            ${ lines | indent(12) }
            x[j] = ${ x };
        }
        uint words[${ words }];
        ${ function }(x, words);
        ${ store | indent(8) }
    }
}
