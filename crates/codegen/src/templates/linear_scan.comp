${ head }
//% if slots > 0
// The pairs of invocations, double-buffered: their slice makes `factor * h + sum` of what precedes it, `h`.
shared ${ type } factors[2][${ slots }];
shared ${ type } sums[2][${ slots }];
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
            ${ type } c[${ elements }], x[${ elements }];
            [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) {
                c[j] = ${ one };
                x[j] = ${ identity };
            }
            ${ load | indent(12) }
//% if slices == 1
            if (g > 0u) x[0] = c[0] * before + x[0];
            [[unroll]] for (uint j = 1u; j < ${ elements }u; ++j) x[j] = c[j] * x[j - 1u] + x[j];
            before = x[${ elements - 1 }];
//% else
            [[unroll]] for (uint j = 1u; j < ${ elements }u; ++j) {
                x[j] = c[j] * x[j - 1u] + x[j];
                c[j] = c[j] * c[j - 1u];
            }
            // Steps of doubling distance (Hillis and Steele, CACM 1986).
            ${ type } factor = c[${ elements - 1 }], sum = x[${ elements - 1 }];
            factors[now][gl_LocalInvocationIndex] = factor;
            sums[now][gl_LocalInvocationIndex] = sum;
            barrier();
            for (uint step = 1u; step < ${ slices }u; step <<= 1) {
                if (slice >= step) {
                    const uint other = gl_LocalInvocationIndex - step * ${ stride }u;
                    sum = factor * sums[now][other] + sum;
                    factor = factor * factors[now][other];
                }
                now ^= 1u;
                factors[now][gl_LocalInvocationIndex] = factor;
                sums[now][gl_LocalInvocationIndex] = sum;
                barrier();
            }
            ${ type } first = before;
            if (slice > 0u) {
                const uint other = gl_LocalInvocationIndex - ${ stride }u;
                first = sums[now][other];
                if (start > 0u) first = factors[now][other] * before + first;
            }
            const ${ type } last = sums[now][${ last }];
            before = start > 0u ? factors[now][${ last }] * before + last : last;
            now ^= 1u;
//% endif
            ${ store | indent(12) }
        }
    }
}
