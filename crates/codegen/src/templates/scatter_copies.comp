${ head }
shared ${ part } part[${ copies * range }];
// `x` with element `at` of copy `own`.
void combine(uint own, uint at, ${ type } x) {
    ${ update | indent(4) }
}
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    const uint low = gl_WorkGroupID.y * ${ range }u;
    const uint size = min(${ target } - low, ${ range }u);
    const uint own = ${ own };
    for (uint k = lane; k < ${ copies * range }u; k += ${ workgroup }u) part[k] = ${ neutral };
    barrier();
    // What the invocation has combined for one position, of which there is none yet.
    uint current = ~0u;
    ${ type } total = ${ type }(0);
    const uint steps = (${ count } - 1u) / ${ step }u + 1u;
    const uint each = (steps - 1u) / gl_NumWorkGroups.x + 1u;
    const uint end = min(steps, (gl_WorkGroupID.x + 1u) * each);
    for (uint step = gl_WorkGroupID.x * each; step < end; ++step) {
        uint places[${ at_once }];
        [[unroll]] for (uint k = 0u; k < ${ at_once }u; ++k) {
            const uint i = step * ${ step }u + k * ${ workgroup }u + lane;
            places[k] = ~0u;
            if (i < ${ count }) {
                ${ place_lines | indent(16) }
                // Positions below the range wrap to large ones.
                places[k] = ${ place } - low;
            }
        }
        ${ type } values[${ at_once }];
        [[unroll]] for (uint k = 0u; k < ${ at_once }u; ++k) {
            const uint i = step * ${ step }u + k * ${ workgroup }u + lane;
            if (places[k] < size) {
                ${ x_lines | indent(16) }
                values[k] = ${ x };
            }
        }
        [[unroll]] for (uint k = 0u; k < ${ at_once }u; ++k) {
            if (places[k] < size) {
                if (places[k] == current) {
                    total = ${ both };
                } else {
                    if (current < size) combine(own, current, total);
                    current = places[k];
                    total = values[k];
                }
            }
        }
    }
    if (current < size) combine(own, current, total);
    barrier();
    for (uint k = lane; k < size; k += ${ workgroup }u) {
        ${ type } x = ${ first };
        //% if copies > 1
        for (uint c = 1u; c < ${ copies }u; ++c) x = ${ next };
        //% endif
        if (${ changes }) {
            ${ store }
        }
    }
}
