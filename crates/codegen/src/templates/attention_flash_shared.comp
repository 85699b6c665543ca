${ head }
// Words of 16 bytes: ${ keys } keys and as many values in ${ element.name }, rows with eight elements more so that neighbours lie in
// different banks; then for each subgroup 16 rows of scores, and a matrix of factors.
shared uvec4 words[${ words }];
// One head and ${ subgroups * 16 } queries a workgroup, 16 a subgroup, two invocations a query. The softmax is kept online: a new
// maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).
//% if element.name == "f16"
// Weights meet values as the sum of two f16, which holds 22 bits of each, times 4096 to keep the second of them normal.
//% else
// Weights are rounded to ${ element.name } when they meet values.
//% endif
void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_SubgroupInvocationID / 2u, side = gl_SubgroupInvocationID % 2u;
    const uint s0 = gl_WorkGroupID.y * ${ subgroups * 16 }u, h = gl_WorkGroupID.x, g = h / ${ group }u;
    const uint own = ${ tile }u + gl_SubgroupID * ${ per_subgroup }u, factors = own + ${ 16 * stride }u;
    ${ prelude | indent(4) }
    const uint keys = ${ t };
    const uint query = min(s0 + gl_SubgroupID * 16u + r, ${ s_extent } - 1u);
    coopmat<${ element.ty }, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> q[${ d // 16 }];
    [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) {
        const uint s = query, part = i * 2u + side;
        ${ q_lines | indent(8) }
        words[own + r * 3u + side] = ${ q };
        subgroupBarrier();
        coopMatLoad(q[i], words, own, 3u, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
    }
//% if causal or window
    // Keys up to a query's own, i + T - S, which is below 0 where queries outnumber keys.
    const uint past = query + 1u + keys, last = min(s0 + ${ subgroups * 16 }u, ${ s_extent }) + keys;
    const uint mine = past > ${ s_extent } ? past - ${ s_extent } : 0u, latest = last > ${ s_extent } ? last - ${ s_extent } : 0u;
//% endif
//% if window
    const uint from = mine > ${ window }u ? mine - ${ window }u : 0u;
    const uint earliest = s0 + 1u + keys > ${ s_extent } + ${ window }u ? s0 + 1u + keys - ${ s_extent } - ${ window }u : 0u;
//% else
    const uint from = 0u, earliest = 0u;
//% endif
    const uint to = ${ "mine" if causal else "keys" }, end = ${ "latest" if causal else "keys" };
    const float hidden = ${ hidden };
    float top = hidden, sum = 0.0;
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[${ e // 16 }];
    [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    for (uint t0 = earliest; t0 < end; t0 += ${ keys }u) {
//% for o in staged
        [[unroll]] for (uint i = lane; i < ${ o.all }u; i += ${ subgroups * 32 }u) {
            const uint t = min(t0 + i / ${ o.across }u, keys - 1u), part = i % ${ o.across }u;
            ${ o.lines | indent(12) }
            words[${ o.at ~ "u + " if o.at }i / ${ o.across }u * ${ o.across + 1 }u + part] = ${ o.load };
        }
//% endfor
        barrier();
        [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) {
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> products = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
            [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) {
                coopmat<${ element.ty }, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> k;
                coopMatLoad(k, words, j * ${ 16 * (d // 8 + 1) }u + i * 2u, ${ d // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
                products = coopMatMulAdd(q[i], k, products);
            }
            coopMatStore(products, words, own + j * 4u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        float score[${ keys // 2 }];
        float now = top;
        [[unroll]] for (uint c = 0u; c < ${ keys // 2 }u; ++c) {
            const uint s = query, t = min(t0 + side * ${ keys // 2 }u + c, keys - 1u);
            score[c] = uintBitsToFloat(words[own + r * ${ stride }u + side * ${ keys // 8 }u + c / 4u][c % 4u]) * ${ scale };
//% if cap
            score[c] = ${ cap } * ${ capped };
//% endif
//% if bias
            ${ t_lines | indent(12) }
            score[c] += ${ bias };
//% endif
            const uint at = t0 + side * ${ keys // 2 }u + c;
            score[c] = at >= from && at < to ? score[c] : hidden;
            now = max_of(now, score[c]);
        }
        now = max_of(now, subgroupShuffleXor(now, 1u));
        // Where all scores so far are hidden, so is their maximum, and infinity less infinity is no number.
        const float rescale = top == hidden ? 0.0 : ${ exp_top };
        const bool moved = subgroupAny(rescale != 1.0);
        sum *= rescale;
        subgroupBarrier();
        [[unroll]] for (uint i = 0u; i < ${ keys // 16 }u; ++i) {
            uvec4 high${ ", low" if element.name == "f16" };
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                vec2 p;
                [[unroll]] for (uint x = 0u; x < 2u; ++x) {
                    const uint c = 8u * i + 2u * j + x;
                    p[x] = score[c] == hidden ? 0.0 : 4096.0 * ${ exp_score };
                    sum += p[x];
                }
//% if element.name == "f16"
                // Cut off in bits: drivers take a cast to f16 and back for nothing.
                const vec2 cut = uintBitsToFloat(floatBitsToUint(p) & 0xffffe000u);
                high[j] = packFloat2x16(f16vec2(cut));
                low[j] = packFloat2x16(f16vec2(p - cut));
//% else
                high[j] = bits_bf16(p.x) | bits_bf16(p.y) << 16;
//% endif
            }
            words[own + r * ${ stride }u + side * ${ keys // 16 }u + i] = high;
//% if element.name == "f16"
            words[own + r * ${ stride }u + ${ keys // 8 }u + side * ${ keys // 16 }u + i] = low;
//% endif
        }
        if (moved) {
            const uvec4 factor = uvec4(floatBitsToUint(rescale));
            words[factors + r * 4u + side * 2u] = factor;
            words[factors + r * 4u + side * 2u + 1u] = factor;
        }
        subgroupBarrier();
        if (moved) {
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> factor;
            coopMatLoad(factor, words, factors, 4u, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) sums[i] = sums[i] * factor;
        }
        [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) {
            coopmat<${ element.ty }, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> high${ ", low" if element.name == "f16" };
            coopMatLoad(high, words, own + j * 2u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
//% if element.name == "f16"
            coopMatLoad(low, words, own + ${ keys // 8 }u + j * 2u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
//% endif
            [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) {
                coopmat<${ element.ty }, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> v;
                coopMatLoad(v, words, ${ values0 }u + j * ${ 16 * (e // 8 + 1) }u + i * 2u, ${ e // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
                sums[i] = coopMatMulAdd(high, v, sums[i]);
//% if element.name == "f16"
                sums[i] = coopMatMulAdd(low, v, sums[i]);
//% endif
            }
        }
        top = now;
        barrier();
    }
    // The largest weight is 4096, so a sum of 0 is that of a query that sees no key.
    ${ "" if sink else "const " }float total = sum + subgroupShuffleXor(sum, 1u);
//% if sink
    // Relative to the sink where that is larger, in two steps: neither the sum nor a factor leaves the range of f32.
    float fade = 1.0;
    if (total != 0.0) {
        const float now = top;
        ${ sink.lines | indent(8) }
        const float over = ${ sink.over };
        fade = ${ sink.fade };
        total = fma(total * fade, fade, 4096.0 * ${ sink.weight });
    }
//% endif
    const uint s = s0 + gl_SubgroupID * 16u + r;
    [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) {
        coopMatStore(sums[i], words, own, 4u, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        for (uint c = 0u; c < 8u; ++c) {
            const uint e = i * 16u + side * 8u + c;
            const float value = uintBitsToFloat(words[own + r * 4u + side * 2u + c / 4u][c % 4u]);
            const float result = total == 0.0 ? 0.0 : value${ " * fade * fade" if sink } / total;
            if (s < ${ s_extent }) {
                ${ store | indent(16) }
            }
        }
        subgroupBarrier();
    }
}
