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
    for (uint block = gl_GlobalInvocationID.x; block < ${ blocks }; block += stride) {
        float x[32];
        float most = 0.0;
        for (uint j = 0u; j < 32u; ++j) {
            const uint i = block * 32u + j;
            ${ lines | indent(12) }
            x[j] = ${ x };
            most = max(most, abs(x[j]));
        }
        const float scale = most / 127.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
        int sum = 0;
        for (uint word = 0u; word < 8u; ++word) {
            uint bytes = 0u;
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                const int q = to_int(round_of(x[4u * word + j] * inverse));
                sum += q;
                bytes |= uint(q & 255) << (8u * j);
            }
            ${ store_bytes }
        }
        // Both are rounded to f16 already: packing changes nothing.
        const uint scales = packHalf2x16(vec2(round_f16(scale), round_f16(scale * float(sum))));
        ${ store_scales }
    }
}
