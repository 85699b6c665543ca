${ head }
shared ${ key } tile[${ workgroup }];
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    for (uint row = gl_WorkGroupID.y; row < ${ rows }; row += gl_NumWorkGroups.y) {
        ${ row_lines | indent(8) }
        for (uint first = gl_WorkGroupID.x * ${ workgroup }u; first < ${ len }; first += gl_NumWorkGroups.x * ${ workgroup }u) {
            const uint i = first + lane;
            ${ key } own = ${ zero };
            if (i < ${ len }) {
                ${ own_lines | indent(16) }
                own = ${ own };
            }
            uint place = 0u;
            for (uint start = 0u; start < ${ len }; start += ${ workgroup }u) {
                const uint j = start + lane;
                // Beyond the end nothing is smaller than any element, or before it.
                tile[lane] = ${ most };
                if (j < ${ len }) {
                    ${ other_lines | indent(20) }
                    tile[lane] = ${ other };
                }
                barrier();
                for (uint k0 = 0u; k0 < ${ workgroup }u; k0 += ${ step }u) {
                    [[unroll]] for (uint c = 0u; c < ${ step }u; ++c) {
                        const uint k = k0 + c;
                        place += tile[k] < own || (tile[k] == own && start + k < i) ? 1u : 0u;
                    }
                }
                barrier();
            }
            if (i < ${ len }) {
                ${ store | indent(16) }
            }
        }
    }
}
