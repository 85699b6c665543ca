#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
// Eight sums of products of 16 by 16 f16 matrices in each subgroup, all of whose elements are stored.
layout(local_size_x = 128) in;
layout(std430, binding = 0) readonly buffer A { float16_t a[]; };
layout(std430, binding = 1) writeonly buffer B { float b[]; };
layout(push_constant) uniform Push { uint steps; };

void main() {
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left[2];
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> right[4];
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[8];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        coopMatLoad(left[i], a, i * 256u, 16u, gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        coopMatLoad(right[j], a, 512u + j * 256u, 16u, gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        sums[k] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    for (uint done = 0u; done < steps; ++done) {
        [[unroll]] for (uint i = 0u; i < 2u; ++i) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                sums[4u * i + j] = coopMatMulAdd(left[i], right[j], sums[4u * i + j]);
            }
        }
    }
    uint subgroup = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        coopMatStore(sums[k], b, (subgroup * 8u + k) * 256u, 16u, gl_CooperativeMatrixLayoutRowMajor);
    }
}
