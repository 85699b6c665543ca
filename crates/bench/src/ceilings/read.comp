#version 450
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
    for (uint i = 0u; i < 16u; ++i) {
        sum += a[start + i * 256u];
    }
    sums[lane] = sum;
    barrier();
    for (uint half_of = 128u; half_of > 0u; half_of /= 2u) {
        if (lane < half_of) {
            sums[lane] += sums[lane + half_of];
        }
        barrier();
    }
    if (lane == 0u) {
        b[gl_WorkGroupID.x] = sums[0];
    }
}
