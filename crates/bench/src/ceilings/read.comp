#version 450
#extension GL_EXT_control_flow_attributes : require
// Every invocation loads sixteen vectors of sixteen bytes, which do not wait for each other, and each workgroup
// stores one sum.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 a[]; };
layout(std430, binding = 1) writeonly buffer B { uvec4 b[]; };
shared uvec4 sums[256];

void main() {
    uint lane = gl_LocalInvocationIndex;
    uint start = gl_WorkGroupID.x * 4096u + lane;
    uvec4 sum = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < 16u; ++i) {
        sum += a[start + i * 256u];
    }
    sums[lane] = sum;
    barrier();
    for (uint width = 128u; width > 0u; width /= 2u) {
        if (lane < width) {
            sums[lane] += sums[lane + width];
        }
        barrier();
    }
    if (lane == 0u) {
        b[gl_WorkGroupID.x] = sums[0];
    }
}
