#version 450
#extension GL_EXT_control_flow_attributes : require
// Eight chains of multiply-adds, which do not wait for each other.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) writeonly buffer B { float b[]; };
layout(push_constant) uniform Push { uint steps; };

void main() {
    float m = a[0];
    float c = a[1];
    float x[8];
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        x[k] = a[2u + gl_LocalInvocationIndex] + float(k);
    }
    for (uint i = 0u; i < steps; ++i) {
        [[unroll]] for (uint k = 0u; k < 8u; ++k) {
            x[k] = fma(x[k], m, c);
        }
    }
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) {
        sum += x[k];
    }
    b[gl_GlobalInvocationID.x] = sum;
}
