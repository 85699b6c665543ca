${ head }
shared ${ type } part[${ workgroup }];
// Each chunk is scanned in steps of doubling distance (Hillis and Steele, CACM 1986), after the total so far.
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    for (uint row = gl_WorkGroupID.x; row < ${ rows }; row += gl_NumWorkGroups.x) {
        ${ row_lines | indent(8) }
        ${ type } before = ${ identity };
        for (uint start = 0u; start < ${ len }; start += ${ workgroup }u) {
            const uint i = start + lane;
            ${ type } x = ${ identity };
            if (i < ${ len }) {
                ${ x_lines | indent(16) }
                x = ${ x };
            }
            part[lane] = x;
            barrier();
            for (uint step = 1u; step < ${ workgroup }u; step <<= 1) {
                const ${ type } y = lane >= step ? part[lane - step] : ${ identity };
                barrier();
                x = y ${ sign } x;
                part[lane] = x;
                barrier();
            }
            const ${ type } total = before ${ sign } x;  // ${ comment }
            if (i < ${ len }) {
                ${ store | indent(16) }
            }
            before = before ${ sign } part[${ workgroup - 1 }];
            barrier();
        }
    }
}
