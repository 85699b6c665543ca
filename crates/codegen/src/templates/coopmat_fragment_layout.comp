#version 450
#extension GL_EXT_control_flow_attributes : require
#extension ${ extension } : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) writeonly buffer B0 { uint b0[]; };
// Matrices whose elements are their own places, 16 row + column, as floats and as ${ name }.
shared uvec4 floats[64];
shared uvec4 halves[32];
// Writes for each lane 1 where matrices lie as attention_flash_registers.comp takes them to, and 0 where they do not.
void main() {
    const uint lane = gl_SubgroupInvocationID, r = lane / 4u, c = lane % 4u;
    for (uint i = gl_LocalInvocationIndex; i < 64u; i += 32u) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) floats[i][j] = floatBitsToUint(float(4u * i + j));
    }
    for (uint i = gl_LocalInvocationIndex; i < 32u; i += 32u) {
//% if name == "f16"
        [[unroll]] for (uint j = 0u; j < 4u; ++j) halves[i][j] = packFloat2x16(f16vec2(8u * i + 2u * j, 8u * i + 2u * j + 1u));
//% else
        // Places are below 256, so that they are exact: the upper halves of floats.
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            const uvec2 pair = floatBitsToUint(vec2(8u * i + 2u * j, 8u * i + 2u * j + 1u));
            halves[i][j] = pair.x >> 16 | pair.y;
        }
//% endif
    }
    barrier();
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums;
    coopmat<${ ty }, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left;
    coopMatLoad(sums, floats, 0u, 4u, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(left, halves, 0u, 2u, gl_CooperativeMatrixLayoutRowMajor);
    bool known = sums.length() == 8 && left.length() == 8;
    [[unroll]] for (uint x = 0u; x < 8u; ++x) {
        const float place = float(16u * (r + x / 4u * 8u) + 2u * c + x % 2u + x / 2u % 2u * 8u);
        if (sums.length() == 8 && left.length() == 8) known = known && sums[x] == place && float(left[x]) == place;
    }
    b0[gl_LocalInvocationIndex] = known && gl_SubgroupInvocationID == gl_LocalInvocationIndex ? 1u : 0u;
}
