${ head }
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    const uint segments = ${ rows } * ${ runs };
    for (uint first = gl_WorkGroupID.x * ${ side_by_side }u; first < segments; first += gl_NumWorkGroups.x * ${ side_by_side }u) {
        ${ key } x[${ elements }];
        uint at[${ elements }];
        [[unroll]] for (uint e = 0u; e < ${ elements }u; ++e) {
            const uint s = ${ elements }u * lane + e, segment = first + s / ${ span }u;
            const uint row = segment / ${ runs }, start = segment % ${ runs } * ${ run };
            const uint i = start + s % ${ span }u;
            x[e] = ${ last };
            at[e] = 0xffffffffu;
            if (segment < segments && s % ${ span }u < ${ run } && i < ${ len }) {
                ${ load | indent(16) }
                x[e] = ${ x };
                at[e] = i;
            }
        }
        sort_tile(${ span }u, x, at);
        for (uint s = lane; s < ${ span * side_by_side }u; s += ${ workgroup }u) {
            const uint segment = first + s / ${ span }u;
            const uint row = segment / ${ runs }, start = segment % ${ runs } * ${ run };
            const uint place = start + s % ${ span }u;
            if (segment < segments && s % ${ span }u < ${ run } && place < ${ stored }) {
                const uint i = places[slot(s)];
                ${ store | indent(16) }
            }
        }
        barrier();
    }
}
