${ head }
// Tiles of the operands: one line for each element along the last axis of the outputs.
${ tiles }
void main() {
    const uint lane = gl_LocalInvocationIndex % ${ tile }u, line = gl_LocalInvocationIndex / ${ tile }u;
    ${ prelude | indent(4) }
    for (uint t = gl_WorkGroupID.x; t < ${ count }; t += gl_NumWorkGroups.x) {
        const uint x0 = t % ${ across }u * ${ tile }u, y0 = t / ${ across }u % ${ down }u * ${ tile }u, left = t / ${ across * down }u;
        [[unroll]] for (uint s0 = 0u; s0 < ${ tile }u; s0 += ${ lines }u) {
            const uint s = s0 + line, x = x0 + s, y = y0 + lane;
            if (s < ${ tile }u && x < ${ width } && y < ${ height }) {
                ${ load | indent(16) }
            }
        }
        barrier();
        [[unroll]] for (uint s0 = 0u; s0 < ${ tile }u; s0 += ${ lines }u) {
            const uint s = s0 + line, x = x0 + lane, y = y0 + s;
            if (s < ${ tile }u && x < ${ width } && y < ${ height }) {
                ${ store | indent(16) }
            }
        }
        barrier();
    }
}
