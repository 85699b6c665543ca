${ head }
shared float query[${ d }];
// What each subgroup found: the largest score, the sum of weights relative to it, and the weighted values.
shared float tops[${ subgroups }], sums[${ subgroups }], parts[${ subgroups * e }];
// One head and query a workgroup. ${ "Its subgroups take" if team == size else "Teams of " ~ team ~ " lanes take" } ${ keys } keys in turn, the lanes of one share each product, and the
// softmax is kept online: a new maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867). At the
// end the same brings ${ "the subgroups" if team == size else "teams and subgroups" } together.
void main() {
    const uint tid = gl_LocalInvocationIndex, lane = gl_SubgroupInvocationID;
    const uint s = gl_WorkGroupID.x, h = gl_WorkGroupID.y, g = h / ${ group }u;
    ${ prelude | indent(4) }
    ${ prologue | indent(4) }
    barrier();
//% if step > 1
    // A lane's own part of the query and of each key: ${ step } neighbours at a time.
    const uint part0 = lane % ${ team }u * ${ step }u;
    float q[${ queries * step }];
    [[unroll]] for (uint i = 0u; i < ${ queries * step }u; ++i) {
        const uint d = part0 + i / ${ step }u * ${ team * step }u + i % ${ step }u;
        q[i] = ${ "query[d]" if d % (team * step) == 0 else "d < " ~ d ~ "u ? query[d] : 0.0" };
    }
//% endif
//% if team == size
    for (uint t0 = first + gl_SubgroupID * ${ keys }u; t0 < end; t0 += ${ subgroups * keys }u) {
//% else
    // All teams of a subgroup stay in the loop until the last is done.
    for (uint t1 = first + gl_SubgroupID * ${ keys * size // team }u; t1 < end; t1 += ${ subgroups * keys * size // team }u) {
        const uint t0 = t1 + lane / ${ team }u * ${ keys }u;
//% endif
        float score[${ keys }];
        float now = top;
        [[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
            const uint t = min(t0 + j, end - 1u);
            ${ t_lines | indent(12) }
            float part = 0.0;
            [[unroll]] for (uint i = 0u; i < ${ queries }u; ++i) {
//% if step > 1
                const uint d = part0 + i * ${ team * step }u;
//% if d % (team * step)
                if (d >= ${ d }u) break;
//% endif
                float w[${ step }];
                ${ k_lines | indent(16) }
                [[unroll]] for (uint c = 0u; c < ${ step }u; ++c) part = fma(q[i * ${ step }u + c], w[c], part);
//% else
                const uint d = lane + i * ${ size }u;
//% if d % size
                if (d >= ${ d }u) break;
//% endif
                ${ k_lines | indent(16) }
                part = fma(query[d], ${ k }, part);
//% endif
            }
//% if team == size
            score[j] = subgroupAdd(part);
//% else
            [[unroll]] for (uint mask = 1u; mask < ${ team }u; mask *= 2u) part += subgroupShuffleXor(part, mask);
            score[j] = part;
//% endif
//% if cap
            score[j] = ${ cap } * ${ capped };
//% endif
//% if bias
            score[j] += ${ bias };
//% endif
            score[j] = t0 + j < end ? score[j] : hidden;
            now = max_of(now, score[j]);
        }
        // Where all scores so far are hidden, so is their maximum, and infinity less infinity is no number.
        const float rescale = top == hidden ? 0.0 : ${ exp_top };
        sum *= rescale;
        [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) acc[i] *= rescale;
        [[unroll]] for (uint j = 0u; j < ${ keys }u; ++j) {
            const uint t = min(t0 + j, end - 1u);
            const float p = score[j] == hidden ? 0.0 : ${ exp_score };
            sum += p;
            [[unroll]] for (uint i = 0u; i < ${ values }u; ++i) {
//% if step > 1
                const uint e = part0 + i * ${ team * step }u;
//% if e % (team * step)
                if (e >= ${ e }u) break;
//% endif
                float w[${ step }];
                ${ v_lines | indent(16) }
                [[unroll]] for (uint c = 0u; c < ${ step }u; ++c)
                    acc[i * ${ step }u + c] = fma(p, t0 + j < end ? w[c] : 0.0, acc[i * ${ step }u + c]);
//% else
                const uint e = lane + i * ${ size }u;
//% if e % size
                if (e >= ${ e }u) break;
//% endif
                ${ v_lines | indent(16) }
                acc[i] = fma(p, t0 + j < end ? ${ v } : 0.0, acc[i]);
//% endif
            }
        }
        top = now;
    }
//% if team < size
    float now = top;
    [[unroll]] for (uint mask = ${ team }u; mask < ${ size }u; mask *= 2u) now = max_of(now, subgroupShuffleXor(now, mask));
    const float rescale = top == hidden ? 0.0 : ${ exp_top };
    sum *= rescale;
    [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) acc[i] *= rescale;
    [[unroll]] for (uint mask = ${ team }u; mask < ${ size }u; mask *= 2u) {
        sum += subgroupShuffleXor(sum, mask);
        [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) acc[i] += subgroupShuffleXor(acc[i], mask);
    }
    top = now;
//% endif
    if (lane == 0u) {
        tops[gl_SubgroupID] = top;
        sums[gl_SubgroupID] = sum;
    }
//% if step > 1
    if (lane < ${ team }u) {
        [[unroll]] for (uint i = 0u; i < ${ values * step }u; ++i) {
            const uint e = part0 + i / ${ step }u * ${ team * step }u + i % ${ step }u;
            ${ "" if e % (team * step) == 0 else "if (e < " ~ e ~ "u) " }parts[gl_SubgroupID * ${ e }u + e] = acc[i];
        }
    }
//% else
    [[unroll]] for (uint i = 0u; i < ${ values }u; ++i) {
        const uint e = lane + i * ${ size }u;
        if (e < ${ e }u) parts[gl_SubgroupID * ${ e }u + e] = acc[i];
    }
//% endif
    barrier();
    for (uint e = tid; e < ${ e }u; e += ${ workgroup }u) {
        float now = hidden;
        for (uint i = 0u; i < ${ subgroups }u; ++i) now = max_of(now, tops[i]);
        float total = 0.0, value = 0.0;
        for (uint i = 0u; i < ${ subgroups }u; ++i) {
            const float weight = tops[i] == hidden ? 0.0 : ${ exp_part };
            total = fma(sums[i], weight, total);
            value = fma(parts[i * ${ e }u + e], weight, value);
        }
//% if sink
        if (total != 0.0) {
            ${ sink.lines | indent(12) }
            const float over = ${ sink.over }, fade = ${ sink.fade };
            total = fma(total * fade, fade, ${ sink.weight });
            value = value * fade * fade;
        }
//% endif
        // The largest weight is 1, so a sum of 0 is that of a query that sees no key.
        const float result = total == 0.0 ? 0.0 : value / total;
        ${ store | indent(8) }
    }
}
