#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require
// Eight chains of dot products of four signed bytes, each added to what it reads.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { int a[]; };
layout(std430, binding = 1) writeonly buffer B { int b[]; };
layout(push_constant) uniform Push { uint steps; };

void main() {
    int m = a[0];
    int x[8];
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        x[k] = a[2u + gl_LocalInvocationIndex] + int(k);
    }
    for (uint i = 0u; i < steps; ++i) {
        [[unroll]] for (uint k = 0u; k < 8u; ++k) {
            x[k] += dotPacked4x8EXT(m, x[k]);
        }
    }
    int sum = 0;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        sum += x[k];
    }
    b[gl_GlobalInvocationID.x] = sum;
}
