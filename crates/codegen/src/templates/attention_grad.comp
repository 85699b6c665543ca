${ head }
//% set own = [k, v] if keys else [q, of_g]
//% set other = [q, of_g] if keys else [k, v]
shared ${ type } own_d[${ d }], own_e[${ e }];
shared ${ type } dxs[${ workgroup }], ps[${ workgroup }];
//% macro score_of()
${ type } score = ${ zero };
for (uint d = 0u; d < ${ d }u; ++d) {
    ${ other[0].lines | indent(4) }
    score = fma(own_d[d], ${ other[0].text }, score);
}
score *= ${ scale };
//% if cap
score = ${ cap } * ${ capped };
const ${ type } slope = ${ one } - score / ${ cap } * (score / ${ cap });
//% endif
//% if bias
${ bias_lines }
score += ${ bias };
//% endif
//% if causal
if (t >= s + 1u + keys - min(queries, s + 1u + keys)) score = hidden;
//% endif
//% if window
if (t + ${ window }u < s + 1u + keys - min(queries, s + 1u + keys)) score = hidden;
//% endif
//% endmacro
// A row of one side a workgroup: ${ "a key of a head" if keys else "a query of a head" }. The other side's rows in steps of one an invocation: it computes a weight and the
// gradient of its score, and then all add columns up (Dao et al., arXiv 2205.14135, 2307.08691).
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    const uint keys = ${ t }, queries = ${ s_extent };
    const ${ type } hidden = ${ hidden };
//% if keys
    const uint t = gl_WorkGroupID.x, g = gl_WorkGroupID.y;
//% else
    const uint s = gl_WorkGroupID.x, h = gl_WorkGroupID.y, g = h / ${ group }u;
//% endif
    for (uint d = lane; d < ${ d }u; d += ${ workgroup }u) {
        ${ own[0].lines | indent(8) }
        own_d[d] = ${ own[0].text };
    }
    for (uint e = lane; e < ${ e }u; e += ${ workgroup }u) {
        ${ own[1].lines | indent(8) }
        own_e[e] = ${ own[1].text };
    }
    ${ type } sum_d[${ slots[0] }];
    [[unroll]] for (uint i = 0u; i < ${ slots[0] }u; ++i) sum_d[i] = ${ zero };
//% if keys
    ${ type } sum_e[${ slots[1] }];
    [[unroll]] for (uint i = 0u; i < ${ slots[1] }u; ++i) sum_e[i] = ${ zero };
//% endif
    barrier();
//% if keys
    for (uint h = g * ${ group }u; h < (g + 1u) * ${ group }u; ++h) {
    for (uint first = ${ "t + queries - min(keys, t + queries)" if causal else "0u" }; first < queries; first += ${ workgroup }u) {
        const uint s = first + lane, others = queries;
//% else
    const uint others = ${ "s + 1u + keys - min(queries, s + 1u + keys)" if causal else "keys" };
    ${ type } top = hidden, part = ${ zero };
    for (uint t = lane; t < others; t += ${ workgroup }u) {
        ${ score_of() | indent(8) }
        const ${ type } now = max_of(top, score);
        if (score != hidden) part = (top == hidden ? ${ zero } : part * ${ exp_step }) + ${ exp_score };
        top = now;
    }
    // The largest exponential is 1, so a sum of 0 is that of a query that sees no key.
    const ${ type } most = ${ max }(top);
    const ${ type } all = ${ total }(top == hidden ? ${ zero } : part * ${ exp_top });
    const ${ type } sums = all == ${ zero } ? ${ infinity } : most + ${ log };
    ${ row_lines | indent(4) }
    const ${ type } mean = ${ means };
    if (lane == 0u) {
        const ${ type } found = sums;
        ${ stores[1] | indent(8) }
    }
    for (uint first = 0u; first < others; first += ${ workgroup }u) {
        const uint t = first + lane;
//% endif
        ${ type } dx = ${ zero }, p = ${ zero };
        if (first + lane < others) {
            ${ score_of() | indent(12) }
            if (score != hidden) {
//% if keys
                ${ row_lines | indent(16) }
                const ${ type } sums = ${ of_sums }, mean = ${ means };
//% endif
                ${ type } dp = ${ zero };
                for (uint e = 0u; e < ${ e }u; ++e) {
                    ${ other[1].lines | indent(20) }
                    dp = fma(own_e[e], ${ other[1].text }, dp);
                }
                p = ${ weight };
                // What has no weight has no gradient, however steep.
                dx = p == ${ zero } ? ${ zero } : p * (dp - mean)${ " * slope" if cap };
            }
        }
        dxs[lane] = ${ rounded_dx };
//% if keys
        ps[lane] = ${ rounded_p };
//% endif
        barrier();
        const uint count = min(${ workgroup }u, others - first);
        [[unroll]] for (uint i = 0u; i < ${ slots[0] }u; ++i) {
            const uint d = lane + i * ${ workgroup }u;
            if (d < ${ d }u) {
                for (uint j = 0u; j < count; ++j) {
                    const uint ${ "s" if keys else "t" } = first + j;
                    ${ other[0].lines | indent(20) }
                    // A hidden row may hold anything.
                    if (dxs[j] != ${ zero }) sum_d[i] = fma(dxs[j], ${ other[0].text }, sum_d[i]);
                }
            }
        }
//% if keys
        [[unroll]] for (uint i = 0u; i < ${ slots[1] }u; ++i) {
            const uint e = lane + i * ${ workgroup }u;
            if (e < ${ e }u) {
                for (uint j = 0u; j < count; ++j) {
                    const uint s = first + j;
                    ${ other[1].lines | indent(20) }
                    if (ps[j] != ${ zero }) sum_e[i] = fma(ps[j], ${ other[1].text }, sum_e[i]);
                }
            }
        }
//% endif
        barrier();
    }
//% if keys
    }
//% endif
    [[unroll]] for (uint i = 0u; i < ${ slots[0] }u; ++i) {
        const uint d = lane + i * ${ workgroup }u;
        if (d < ${ d }u) {
            const ${ type } found = sum_d[i] * ${ scale };
            ${ stores[0] | indent(12) }
        }
    }
//% if keys
    [[unroll]] for (uint i = 0u; i < ${ slots[1] }u; ++i) {
        const uint e = lane + i * ${ workgroup }u;
        if (e < ${ e }u) {
            const ${ type } found = sum_e[i];
            ${ stores[1] | indent(12) }
        }
    }
//% endif
}
