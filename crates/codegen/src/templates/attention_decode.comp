${ head }
//% macro ask(from, last)
[[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
    const uint t = min(${ from } + team + j * ${ teams }u, ${ last });
    [[unroll]] for (uint i = 0u; i < ${ queries }u; ++i) {
        const uint d = own * ${ step }u + i * ${ team * step }u;
        ${ (k_lines ~ "\n") | indent(8) if k_lines }${ "if (d < " ~ d ~ "u) " if d % (team * step) }keys_ahead[j * ${ queries }u + i] = ${ k };
    }
    [[unroll]] for (uint i = 0u; i < ${ values }u; ++i) {
        const uint e = own * ${ step }u + i * ${ team * step }u;
        ${ (v_lines ~ "\n") | indent(8) if v_lines }${ "if (e < " ~ e ~ "u) " if e % (team * step) }values_ahead[j * ${ values }u + i] = ${ v };
    }
}
//% endmacro
//% macro add_sink()
//% if sink
if (total != 0.0) {
    ${ sink.lines | indent(4) }
    const float over = ${ sink.over }, fade = ${ sink.fade };
    total = fma(total * fade, fade, ${ sink.weight });
    value = value * fade * fade;
}
//% endif
//% endmacro
//% macro halve(sums, lane, halves, rest)
//% for half in halves
[[unroll]] for (uint i = 0u; i < ${ half.count }u; ++i) {
    const bool upper = (${ lane } & ${ half.mask }u) != 0u;
    const float given = upper ? ${ sums }[i] : ${ sums }[i + ${ half.count }u], kept = upper ? ${ sums }[i + ${ half.count }u] : ${ sums }[i];
    ${ sums }[i] = kept + subgroupShuffleXor(given, ${ half.mask }u);
}
//% endfor
//% for mask in rest
${ sums }[0] += subgroupShuffleXor(${ sums }[0], ${ mask }u);
//% endfor
//% endmacro
shared float query[${ heads * d }];
// What each subgroup found: the largest score, the sum of weights relative to it, and the weighted values: element by
// element of a lane's own, all lanes of a team side by side and a gap, so that neighbours lie in different banks.
shared float tops[${ heads * subgroups }], sums[${ heads * subgroups }], parts[${ heads * subgroups * row }];
//% if splits > 1
// Values, largest score and sum of weights of each head and split, and how many splits of a group of heads are done.
${ partials }
//% endif
// One query. A workgroup takes ${ "one" if heads == 1 else heads } of the heads that share keys${ " and a part of the keys" if splits > 1 }, teams of ${ team } lanes ${ keys } keys in turn.
// The softmax is kept online: a new maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867). At
// the end the same brings teams and subgroups together${ ", and the last workgroup that is done the parts" if splits > 1 }.
void main() {
    const uint tid = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID, own = lane % ${ team }u, team = tid / ${ team }u;
    const uint s = 0u, h0 = gl_WorkGroupID.x * ${ heads }u, g = h0 / ${ group }u, split = gl_WorkGroupID.y;
    ${ prelude | indent(4) }
    const uint keys = ${ t };
    const uint first = ${ "keys > " ~ window ~ "u ? keys - " ~ window ~ "u : 0u" if window else "0u" };
//% if splits > 1
    // Few keys are one workgroup's: to bring parts together takes longer than to read them.
    const uint seen = keys - first, each = seen <= ${ least }u ? ${ least }u : max((seen + ${ splits - 1 }u) / ${ splits }u, ${ stride }u);
    const uint from = first + split * each, end = min(from + each, keys);
    if (split > 0u && from >= end) return;
//% else
    const uint from = first, end = keys;
//% endif
//% if prefetch
    // Keys and values in flight; the first step issues its loads before the number of keys is known.
    uvec4 keys_ahead[${ keys * queries }], values_ahead[${ keys * values }];
    ${ ask("from", last ~ "u") | indent(4) }
//% endif
    for (uint i = tid; i < ${ heads * d }u; i += ${ workgroup }u) {
        const uint h = h0 + i / ${ d }u, d = i % ${ d }u;
        ${ q_lines | indent(8) }
        query[i] = ${ q } * ${ scale };
    }
    barrier();
    // A lane's own parts of the queries, of each key and of each value: ${ step } neighbours at a time.
    float q[${ heads * queries * step }];
    [[unroll]] for (uint i = 0u; i < ${ heads * queries * step }u; ++i) {
        const uint d = own * ${ step }u + i % ${ queries * step }u / ${ step }u * ${ team * step }u + i % ${ step }u;
        q[i] = ${ "" if d % (team * step) == 0 else "d >= " ~ d ~ "u ? 0.0 : " }query[i / ${ queries * step }u * ${ d }u + d];
    }
    const float hidden = ${ hidden };
    float top = hidden, sum = 0.0;
    float acc[${ heads * values * step }];
    [[unroll]] for (uint i = 0u; i < ${ heads * values * step }u; ++i) acc[i] = 0.0;
    for (uint t1 = from; t1 < end; t1 += ${ stride }u) {
        // Scores: of head h with key j at h * ${ keys } + j.
        float score[${ products }], value[${ keys * values * step }];
        [[unroll]] for (uint i = 0u; i < ${ products }u; ++i) score[i] = 0.0;
        [[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
//% if not prefetch
            const uint t = min(t1 + team + j * ${ teams }u, end - 1u);
//% endif
            [[unroll]] for (uint i = 0u; i < ${ queries }u; ++i) {
                const uint d = own * ${ step }u + i * ${ team * step }u;
//% if d % (team * step)
                if (d >= ${ d }u) break;
//% endif
                float w[${ step }];
//% if prefetch
                ${ k_widen }(keys_ahead[j * ${ queries }u + i], w);
//% else
                ${ k_lines | indent(16) }
//% endif
                [[unroll]] for (uint h = 0u; h < ${ heads }u; ++h)
                    [[unroll]] for (uint c = 0u; c < ${ step }u; ++c)
                        score[h * ${ keys }u + j] = fma(q[(h * ${ queries }u + i) * ${ step }u + c], w[c], score[h * ${ keys }u + j]);
            }
        }
//% set v_load = v_widen ~ "(values_ahead[j * " ~ values ~ "u + i], w);" if prefetch else v_lines
        [[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
//% if not prefetch
            const uint t = min(t1 + team + j * ${ teams }u, end - 1u);
//% endif
            [[unroll]] for (uint i = 0u; i < ${ values }u; ++i) {
                const uint e = own * ${ step }u + i * ${ team * step }u;
                float w[${ step }];
//% if e % (team * step)
                [[unroll]] for (uint c = 0u; c < ${ step }u; ++c) w[c] = 0.0;
                if (e < ${ e }u) {
                    ${ v_load | indent(20) }
                }
//% else
                ${ v_load | indent(16) }
//% endif
                [[unroll]] for (uint c = 0u; c < ${ step }u; ++c) value[(j * ${ values }u + i) * ${ step }u + c] = t1 + team + j * ${ teams }u < end ? w[c] : 0.0;
            }
        }
//% if prefetch
        const uint next = t1 + ${ stride }u;
        if (next < end) {
            ${ ask("next", "end - 1u") | indent(12) }
        }
//% endif
        // Sums over the lanes of a team: each step halves what a lane has to add, until it holds ${ per } of them.
        ${ halve("score", "own", halves, rest) | indent(8) }
        float now = top;
        [[unroll]] for (uint i = 0u; i < ${ per }u; ++i) {
            const uint at = ${ product } + i, t = t1 + team + at % ${ keys }u * ${ teams }u;
//% if cap
            score[i] = ${ cap } * ${ capped };
//% endif
//% if bias
            {
                const uint h = min(h0 + at / ${ keys }u, ${ all_heads - 1 }u), t = min(t1 + team + at % ${ keys }u * ${ teams }u, end - 1u);
                ${ t_lines | indent(16) }
                score[i] += ${ bias };
            }
//% endif
            score[i] = t < end ? score[i] : hidden;
            now = max_of(now, score[i]);
        }
//% for mask in same_head
        now = max_of(now, subgroupShuffleXor(now, ${ mask }u));
//% endfor
        // Where all scores so far are hidden, so is their maximum, and infinity less infinity is no number.
        const float rescale = top == hidden ? 0.0 : ${ exp_top };
        sum *= rescale;
        [[unroll]] for (uint i = 0u; i < ${ per }u; ++i) {
            score[i] = score[i] == hidden ? 0.0 : ${ exp_score };
            sum += score[i];
        }
        top = now;
        [[unroll]] for (uint h = 0u; h < ${ heads }u; ++h) {
            const float by = subgroupShuffle(rescale, lane - own + h * ${ keys // per * apart }u);
            [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) acc[h * ${ values * step }u + i] *= by;
        }
        [[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
            [[unroll]] for (uint h = 0u; h < ${ heads }u; ++h) {
                const uint at = h * ${ keys }u + j;
                const float p = subgroupShuffle(score[${ place }], lane - own + ${ lane_of_at });
                [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i)
                    acc[h * ${ values * step }u + i] = fma(p, value[j * ${ values * step }u + i], acc[h * ${ values * step }u + i]);
            }
        }
    }
//% for mask in same_head
    sum += subgroupShuffleXor(sum, ${ mask }u);
//% endfor
//% if team < size
    float now = top;
//% for mask in other_teams
    now = max_of(now, subgroupShuffleXor(now, ${ mask }u));
//% endfor
    const float rescale = top == hidden ? 0.0 : ${ exp_top };
    top = now;
    sum *= rescale;
//% for mask in other_teams
    sum += subgroupShuffleXor(sum, ${ mask }u);
//% endfor
    [[unroll]] for (uint h = 0u; h < ${ heads }u; ++h) {
        const float by = subgroupShuffle(rescale, lane - own + h * ${ keys // per * apart }u);
        [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) acc[h * ${ values * step }u + i] *= by;
    }
    ${ halve("acc", "lane", team_halves, team_rest) | indent(4) }
//% endif
    const uint head = own / ${ keys // per * apart }u;
    if (lane < ${ team }u && own % ${ keys // per * apart }u == 0u && head < ${ heads }u) {
        tops[head * ${ subgroups }u + gl_SubgroupID] = top;
        sums[head * ${ subgroups }u + gl_SubgroupID] = sum;
    }
    [[unroll]] for (uint i = 0u; i < ${ team_per }u; ++i) {
        const uint at = lane / ${ team * team_apart }u * ${ team_per }u + i;
        parts[(at / ${ values * step }u * ${ subgroups }u + gl_SubgroupID) * ${ row }u + at % ${ values * step }u * ${ team + 1 }u + own] = acc[i];
    }
    barrier();
    for (uint i = tid; i < ${ heads * e }u; i += ${ workgroup }u) {
        const uint head = i / ${ e }u, h = h0 + head, e = i % ${ e }u;
        const uint at = (e / ${ team * step }u * ${ step }u + e % ${ step }u) * ${ team + 1 }u + e % ${ team * step }u / ${ step }u;
        float now = hidden;
        [[unroll]] for (uint n = 0u; n < ${ subgroups }u; ++n) now = max_of(now, tops[head * ${ subgroups }u + n]);
        float total = 0.0, value = 0.0;
        [[unroll]] for (uint n = 0u; n < ${ subgroups }u; ++n) {
            const float top = tops[head * ${ subgroups }u + n], weight = top == hidden ? 0.0 : ${ exp_top };
            total = fma(sums[head * ${ subgroups }u + n], weight, total);
            value = fma(parts[(head * ${ subgroups }u + n) * ${ row }u + at], weight, value);
        }
//% if splits > 1
        if (seen > each) {
            const uint to = (h * ${ splits }u + split) * ${ e + 2 }u;
            found[to + e] = value;
            if (e == 0u) {
                found[to + ${ e }u] = now;
                found[to + ${ e + 1 }u] = total;
            }
            continue;
        }
//% endif
        ${ add_sink() | indent(8) }
        // The largest weight is 1, so a sum of 0 is that of a query that sees no key.
        const float result = total == 0.0 ? 0.0 : value / total;
        ${ store | indent(8) }
    }
//% if splits > 1
    if (seen <= each) return;
    const uint parts_of_keys = (seen + each - 1u) / each;
    ${ elect | indent(4) }
    for (uint i = tid; i < ${ heads * e }u; i += ${ workgroup }u) {
        const uint h = h0 + i / ${ e }u, e = i % ${ e }u;
        float tops[${ splits }], sums[${ splits }], values[${ splits }];
        float now = hidden;
        [[unroll]] for (uint n = 0u; n < ${ splits }u; ++n) {
            const uint from = (h * ${ splits }u + min(n, parts_of_keys - 1u)) * ${ e + 2 }u;
            values[n] = found[from + e];
            tops[n] = n < parts_of_keys ? found[from + ${ e }u] : hidden;
            sums[n] = found[from + ${ e + 1 }u];
            now = max_of(now, tops[n]);
        }
        float total = 0.0, value = 0.0;
        [[unroll]] for (uint n = 0u; n < ${ splits }u; ++n) {
            const float top = tops[n], weight = top == hidden ? 0.0 : ${ exp_top };
            total = fma(sums[n], weight, total);
            value = fma(values[n], weight, value);
        }
        ${ add_sink() | indent(8) }
        const float result = total == 0.0 ? 0.0 : value / total;
        ${ store | indent(8) }
    }
//% endif
}
