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
//% if name == "bf16"
    // Vulkan leaves open how conversions to bf16 round. Its values from 256 to 512 are even: 257.5 becomes 258, 257 the tie 256.
    // Read from memory: drivers take a conversion and its reverse for nothing.
    const float even = float(256u + 4u * lane);
    [[unroll]] for (uint x = 0u; x < 8u; ++x) {
        if (left.length() == 8) left[x] = ${ ty }(even + (x % 2u == 0u ? 1.5 : 1.0));
    }
    barrier();
    coopMatStore(left, halves, 0u, 2u, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    // The elements x = 0 and 1 are neighbours, at the column 2 c of row r.
    const uint pair = halves[2u * r + c / 4u][c % 4u];
    known = known && pair == (floatBitsToUint(even + 2.0) >> 16 | floatBitsToUint(even));
//% endif
    b0[gl_LocalInvocationIndex] = known && gl_SubgroupInvocationID == gl_LocalInvocationIndex ? 1u : 0u;
}
