${ head }
// The keys of ${ side_by_side } row${ "s" if side_by_side > 1 }, ${ slots } slots each.
shared ${ key } keys[${ side_by_side * slots }];
// ${ comment }
void main() {
    const uint i = gl_LocalInvocationIndex % ${ slots }u, start = gl_LocalInvocationIndex - i;
    ${ prelude | indent(4) }
    for (uint first = gl_WorkGroupID.x * ${ side_by_side }u; first < ${ rows }; first += gl_NumWorkGroups.x * ${ side_by_side }u) {
        const uint row = first + start / ${ slots }u;
        const bool is_element = row < ${ rows } && i < ${ len };
        ${ key } own = ${ last };
        if (is_element) {
            ${ load | indent(12) }
            own = ${ x };
        }
        keys[start + i] = own;
        barrier();
        // Equal elements keep their order. Slots after the last element come after all elements.
        uint place = 0u;
        for (uint j = 0u; j < ${ len }; j += ${ at_once }u) {
            [[unroll]] for (uint e = 0u; e < ${ at_once }u; ++e) {
                const ${ key } other = keys[start + j + e];
                place += uint(other < own || (other == own && j + e < i));
            }
        }
        if (is_element && place < ${ stored }) {
            ${ store | indent(12) }
        }
        barrier();
    }
}
