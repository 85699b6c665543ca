${ head }
//% if slots > 0
// Totals of invocations or subgroups, double-buffered: each step needs one barrier.
shared ${ type } part[2][${ slots }];
//% endif
void main() {
    ${ coordinates | indent(4) }
    ${ prelude | indent(4) }
//% if slots > 0
    uint now = 0u;
//% endif
    for (uint ${ name } = gl_WorkGroupID.x; ${ name } < ${ count }; ${ name } += gl_NumWorkGroups.x) {
        ${ row_lines | indent(8) }
        ${ type } before = ${ before };
        for (uint start = 0u; start < ${ steps }; start += ${ slices }u) {
            const uint g = start + slice;
            ${ type } x[${ elements }];
            [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) x[j] = ${ identity };
            ${ load | indent(12) }
//% if slices == 1
            x[0] = before ${ sign } x[0];
//% endif
            [[unroll]] for (uint j = 1u; j < ${ elements }u; ++j) x[j] = x[j - 1u] ${ sign } x[j];
//% if slices == 1
            before = x[${ elements - 1 }];
//% elif by_subgroup
            ${ type } preceding = subgroupExclusive${ word }(x[${ elements - 1 }]);
//% if subgroups == 1
            const ${ type } first = before ${ sign } preceding;
//% else
            const ${ type } sum = preceding ${ sign } x[${ elements - 1 }];
            if (gl_SubgroupInvocationID == ${ lanes - 1 }u) part[now][gl_SubgroupID] = sum;
            barrier();
            ${ type } first = before;
            for (uint s = 0u; s < ${ subgroups }u; ++s) {
                if (s == gl_SubgroupID) first = before ${ sign } preceding;
                before = before ${ sign } part[now][s];
            }
            now ^= 1u;
//% endif
//% else
            // Steps of doubling distance (Hillis and Steele, CACM 1986).
            ${ type } sum = x[${ elements - 1 }];
            part[now][gl_LocalInvocationIndex] = sum;
            barrier();
            for (uint step = 1u; step < ${ slices }u; step <<= 1) {
                if (slice >= step) sum = part[now][gl_LocalInvocationIndex - step * ${ stride }u] ${ sign } sum;
                now ^= 1u;
                part[now][gl_LocalInvocationIndex] = sum;
                barrier();
            }
            const ${ type } first = slice == 0u ? before : before ${ sign } part[now][gl_LocalInvocationIndex - ${ stride }u];
            before = before ${ sign } part[now][${ last }];
            now ^= 1u;
//% endif
            ${ store | indent(12) }
        }
    }
}
