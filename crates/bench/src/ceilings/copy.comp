#version 450
// Every invocation copies four vectors of sixteen bytes.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer A { uvec4 a[]; };
layout(std430, binding = 1) writeonly buffer B { uvec4 b[]; };

void main() {
    uint start = gl_WorkGroupID.x * 1024u + gl_LocalInvocationIndex;
    uvec4 v0 = a[start];
    uvec4 v1 = a[start + 256u];
    uvec4 v2 = a[start + 512u];
    uvec4 v3 = a[start + 768u];
    b[start] = v0;
    b[start + 256u] = v1;
    b[start + 512u] = v2;
    b[start + 768u] = v3;
}
