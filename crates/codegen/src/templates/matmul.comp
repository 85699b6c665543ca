#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
//% if halves == "f16"
uvec4 packed(float w[8]) {
    uvec4 p;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) p[i] = packFloat2x16(f16vec2(w[2u * i], w[2u * i + 1u]));
    return p;
}
//% endif
${ functions }
//% if halves == "bf16"
uvec4 packed(float w[8]) {
    uvec4 p;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) p[i] = bits_bf16(w[2u * i]) | bits_bf16(w[2u * i + 1u]) << 16;
    return p;
}
// The same for values that are exact in bf16.
uvec4 joined(float w[8]) {
    uvec4 p;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) p[i] = floatBitsToUint(w[2u * i]) >> 16 | floatBitsToUint(w[2u * i + 1u]) & 0xffff0000u;
    return p;
}
//% endif
// The K tiles of both operands. The epilogue reuses them as staging tiles.
shared ${ word } slices[${ words }];
//% if split
// Partials of each output tile, and the number of K slices that are done.
${ split.declarations }
//% endif
//% if staged
${ type } result(uint i) { return ${ "uintBitsToFloat(slices[i >> 2][i & 3u])" if halves else "slices[i >> 2][i & 3u]" }; }
//% endif
void main() {
//% if split
//% if split.batches == 1
    const uint lane = gl_LocalInvocationIndex, batch = 0u, slice = gl_WorkGroupID.z;
//% else
    const uint lane = gl_LocalInvocationIndex, batch = gl_WorkGroupID.z / ${ split.slices }u, slice = gl_WorkGroupID.z % ${ split.slices }u;
//% endif
//% if not split.varies
    const uint first = slice * ${ split.each }u, end = min(first + ${ split.each }u, ${ k });
//% endif
//% else
    const uint lane = gl_LocalInvocationIndex, batch = gl_WorkGroupID.z;
//% endif
    const uint row0 = gl_WorkGroupID.${ "y" if swapped else "x" } * ${ bm }u, group = gl_WorkGroupID.${ "x" if swapped else "y" };
    ${ start | indent(4) }
    ${ prelude | indent(4) }
//% if split and split.varies
    // The K slices of this run. A single one needs no partials.
    const uint used = max((${ k } + ${ split.each - 1 }u) / ${ split.each }u, 1u);
    if (slice >= used) return;
    const uint first = slice * ${ split.each }u, end = min(first + ${ split.each }u, ${ k });
//% endif
//% for s in segments
    if (${ s.test }) {
        ${ s.body | indent(8) }
        return;
    }
//% endfor
}
