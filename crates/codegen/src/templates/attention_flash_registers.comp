${ head }
//% set sums_type = "coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>"
//% set left_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>"
//% set right_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>"
// Words of 16 bytes: two tiles of ${ keys } keys and as many values in ${ element.name }, rows with eight elements more so that neighbours lie in
// different banks. Before and after, the same holds the queries and the results of each subgroup.
shared uvec4 words[${ words }];
// One head and ${ subgroups * blocks * 16 } queries a workgroup, ${ blocks * 16 } a subgroup. The softmax is kept online (Milakov and Gimelshein, arXiv 1805.02867;
// Dao et al., arXiv 2205.14135, 2307.08691). Where matrices lie as below, products of queries and keys become left operands of
// the next product in the registers in which they are. Of an accumulator, and of a left operand likewise, element x of the
// lane 4 r + c is that of row r + 8 (x / 4), column 2 c + x % 2 + 8 (x / 2 % 2).
//% macro ask(t0)
//% for o in staged
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
    const uint t = min(${ t0 }${ " + " ~ o.row ~ ", keys - 1u)" if clamped else ", keys - " ~ keys ~ "u) + " ~ o.row }, part = ${ o.part };
    ${ o.lines | indent(4) }
    next_${ o.name }[i] = ${ o.load };
}
//% endfor
//% endmacro
//% macro keep(tile)
//% for o in staged
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
//% if o.all % (subgroups * 32) != 0
    if (i * ${ subgroups * 32 }u + lane < ${ o.all }u)
//% endif
    words[${ tile } + ${ o.at ~ "u + " if o.at }(${ o.row }) * ${ o.across + 1 }u + ${ o.part }] = next_${ o.name }[i];
}
//% endfor
//% endmacro
void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_SubgroupInvocationID / 4u, c = gl_SubgroupInvocationID % 4u;
//% if causal
    // What has most keys first, so that the last to finish are short.
    const uint s0 = (gl_NumWorkGroups.y - 1u - gl_WorkGroupID.y) * ${ subgroups * blocks * 16 }u;
//% else
    const uint s0 = gl_WorkGroupID.y * ${ subgroups * blocks * 16 }u;
//% endif
    const uint h = gl_WorkGroupID.x, g = h / ${ group }u, first = s0 + gl_SubgroupID * ${ blocks * 16 }u;
    ${ prelude | indent(4) }
    const uint keys = ${ t }, own = gl_SubgroupID * ${ per_subgroup }u;
    ${ left_type } q[${ blocks }][${ d // 16 }];
//% if d > piece
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint p = 0u; p < ${ d // piece }u; ++p) {
//% else
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) {
//% endif
        for (uint i = gl_SubgroupInvocationID; i < ${ 2 * piece }u; i += 32u) {
            const uint s = min(first + b * 16u + i / ${ piece // 8 }u, ${ s_extent } - 1u), part = ${ "p * " ~ piece // 8 ~ "u + " if d > piece }i % ${ piece // 8 }u;
            ${ q_lines | indent(12) }
            words[own + i / ${ piece // 8 }u * ${ piece // 8 + 1 }u + ${ "i % " ~ piece // 8 ~ "u" if d > piece else "part" }] = ${ q };
        }
        subgroupBarrier();
        [[unroll]] for (uint i = 0u; i < ${ piece // 16 }u; ++i) {
            coopMatLoad(q[b][${ "p * " ~ piece // 16 ~ "u + " if d > piece }i], words, own + i * 2u, ${ piece // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
    }
    barrier();
    // Keys up to the position of the subgroup's first query and lane, i + 1 + T - S, which is below 0 where queries outnumber keys.
    const int past = int(first + r + 1u + keys) - int(${ s_extent });
//% if causal or window
    const uint since = s0 + 1u + keys, last = min(s0 + ${ subgroups * blocks * 16 }u, ${ s_extent }) + keys;
//% endif
    const uint begin = ${ "since > " ~ s_extent ~ " + " ~ window ~ "u ? since - " ~ s_extent ~ " - " ~ window ~ "u : 0u" if window else "0u" };
    const uint end = ${ "last > " ~ s_extent ~ " ? last - " ~ s_extent ~ " : 0u" if causal else "keys" };
    const float hidden = ${ hidden };
    // Exponents are relative to a score that was the largest when it was chosen, and another is chosen once a score is above the
//% if element.name == "f16"
    // limit: weights of up to 2^15 are still f16, and of the largest, 2^9 or more, no rounding loses more than 2^-34.
//% else
    // limit.
//% endif
    float limit[${ 2 * blocks }], base[${ 2 * blocks }], sum[${ 2 * blocks }];
    [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
        limit[y] = hidden;
        base[y] = 0.0;
        sum[y] = 0.0;
    }
    ${ sums_type } sums[${ blocks }][${ e // 16 }];
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) sums[b][i] = ${ sums_type }(0.0);
    uvec4 next_keys[${ staged[0].each }], next_values[${ staged[1].each }];
    uint tile = 0u, t0 = begin;
    if (begin < end) {
        ${ ask("begin") | indent(8) }
        ${ keep("0u") | indent(8) }
    }
    barrier();
//% for masked in phases
//% if masked
    [[dont_unroll]] for (; t0 < end; t0 += ${ keys }u) {
//% elif causal
    // Tiles that every query of the workgroup sees.
    const uint seen = since > ${ s_extent } ? since - ${ s_extent } : 0u;
    [[dont_unroll]] for (; t0 + ${ keys }u <= seen; t0 += ${ keys }u) {
//% else
    [[dont_unroll]] for (; t0 + ${ keys }u <= end; t0 += ${ keys }u) {
//% endif
        ${ ask("t0 + " ~ keys ~ "u") | indent(8) }
        ${ sums_type } score[${ blocks }][${ keys // 16 }];
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) score[b][j] = ${ sums_type }(0.0);
        [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) {
            ${ right_type } k;
            coopMatLoad(k, words, tile + j * ${ 16 * (d // 8 + 1) }u + i * 2u, ${ d // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) score[b][j] = coopMatMulAdd(q[b][i], k, score[b][j]);
        }
//% if masked or plain is false
        // Keys that a query sees, counted from the lane's first of the tile.
        const int to = ${ "past" if causal else "int(keys)" } - int(t0 + 2u * c);
//% if window
        const int from = past - ${ window } - int(t0 + 2u * c);
//% endif
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) {
            [[unroll]] for (uint x = 0u; x < 8u; ++x) {
                const uint row = b * 16u + x / 4u * 8u, column = j * 16u + x / 2u % 2u * 8u + x % 2u;
//% if plain is false
                float value = score[b][j][x] * ${ scale };
//% if cap
                value = ${ cap } * ${ capped };
//% endif
//% if bias
                const uint s = min(first + r + row, ${ s_extent } - 1u), t = min(t0 + 2u * c + column, keys - 1u);
                ${ t_lines | indent(16) }
                value += ${ bias };
//% endif
                score[b][j][x] = value;
//% endif
//% if masked
                if (int(column)${ " - int(row)" if causal } >= to${ " || int(column) - int(row) < from" if window }) score[b][j][x] = hidden;
//% endif
            }
        }
//% endif
        // A NaN may or may not be the largest: it makes all of its row NaN by its own weight.
        float most[${ 2 * blocks }];
        bool above = false;
        [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
            most[y] = score[y / 2u][0][y % 2u * 4u];
            [[unroll]] for (uint x = 1u; x < ${ keys // 4 }u; ++x) most[y] = max(most[y], score[y / 2u][x / 4u][y % 2u * 4u + x % 4u]);
            above = above || most[y] > limit[y];
        }
        if (subgroupAny(above)) {
            [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
                float now = max(most[y], subgroupShuffleXor(most[y], 1u));
                now = max(now, subgroupShuffleXor(now, 2u));
                const bool moves = now > limit[y];
                const float other = moves ? now * ${ to_exponent } - 9.0 : base[y];
                const float factor = limit[y] == hidden ? 0.0 : exp2(base[y] - other);
                limit[y] = moves ? now + ${ head_room } : limit[y];
                base[y] = other;
                sum[y] *= factor;
                [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[y / 2u][i][y % 2u * 4u + x] *= factor;
            }
        }
        ${ left_type } weights[${ blocks }][${ keys // 16 }];
//% if not rounds
        // What f16 cuts off of a weight is another, so that both hold 22 bits of it.
        ${ left_type } rests[${ blocks }][${ keys // 16 }];
//% endif
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) {
            [[unroll]] for (uint x = 0u; x < 8u; ++x) {
                const float weight = exp2(fma(score[b][j][x], ${ to_exponent }, -base[2u * b + x / 4u]));
                sum[2u * b + x / 4u] += weight;
//% if rounds and element.name == "f16"
                weights[b][j][x] = ${ element.ty }(weight);
//% elif rounds
                // Rounded in bits to the nearest: Vulkan leaves open how conversions to bf16 round.
                const uint bits = floatBitsToUint(weight);
                weights[b][j][x] = ${ element.ty }(uintBitsToFloat((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u));
//% else
                // Cut off in bits: drivers take a cast to f16 and back for nothing.
                const float cut = uintBitsToFloat(floatBitsToUint(weight) & 0xffffe000u);
                weights[b][j][x] = float16_t(cut);
                rests[b][j][x] = float16_t(weight - cut);
//% endif
            }
        }
        [[unroll]] for (uint j = 0u; j < ${ keys // 16 }u; ++j) [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) {
            ${ right_type } v;
            coopMatLoad(v, words, tile + ${ values0 }u + j * ${ 16 * (e // 8 + 1) }u + i * 2u, ${ e // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) {
                sums[b][i] = coopMatMulAdd(weights[b][j], v, sums[b][i]);
//% if not rounds
                sums[b][i] = coopMatMulAdd(rests[b][j], v, sums[b][i]);
//% endif
            }
        }
        tile = ${ tile }u - tile;
        ${ keep("tile") | indent(8) }
        barrier();
    }
//% endfor
    // The largest weight is above 0, so a sum of 0 is that of a query that sees no key.
    [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
        float total = sum[y] + subgroupShuffleXor(sum[y], 1u);
        total += subgroupShuffleXor(total, 2u);
//% if sink
        // Relative to the sink where that is larger, in two steps: neither the sum nor a factor leaves the range of f32.
        float fade = 1.0;
        if (total != 0.0) {
            ${ sink.lines | indent(12) }
            const float over = fma(${ sink.value }, ${ sink_to_exponent }, -base[y]);
            fade = exp2(-0.5 * max(over, 0.0));
            total = fma(total * fade, fade, exp2(min(over, 0.0)));
        }
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[y / 2u][i][y % 2u * 4u + x] *= fade;
        const float part = total == 0.0 ? 0.0 : fade / total;
//% else
        const float part = total == 0.0 ? 0.0 : 1.0 / total;
//% endif
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[y / 2u][i][y % 2u * 4u + x] *= part;
    }
    // ${ columns } columns of a matrix's rows at a time. Compared, not taken as an index, which would put the matrices into memory: so
    // would loops over invocations' elements inside of unrolled ones.
    for (uint n = 0u; n < ${ blocks * e // columns }u; ++n) {
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ e // columns }u; ++i) {
            if (b * ${ e // columns }u + i != n) continue;
            [[unroll]] for (uint j = 0u; j < ${ columns // 16 }u; ++j) {
                coopMatStore(sums[b][i * ${ columns // 16 }u + j], words, own + j * 4u, ${ columns // 4 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        subgroupBarrier();
        for (uint at = gl_SubgroupInvocationID; at < ${ 16 * columns // size }u; at += 32u) {
            const uint row = at / ${ columns // size }u, part = at % ${ columns // size }u;
            const uint s = first + n / ${ e // columns }u * 16u + row, piece = n % ${ e // columns }u * ${ columns // size }u + part;
            if (s < ${ s_extent }) {
                float found[${ size }];
//% if size % 4 == 0
                [[unroll]] for (uint p = 0u; p < ${ size // 4 }u; ++p) {
                    const vec4 four = uintBitsToFloat(words[own + row * ${ columns // 4 + 1 }u + part * ${ size // 4 }u + p]);
                    [[unroll]] for (uint j = 0u; j < 4u; ++j) found[p * 4u + j] = four[j];
                }
//% else
                [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) {
                    const uint x = part * ${ size }u + j;
                    found[j] = uintBitsToFloat(words[own + row * ${ columns // 4 + 1 }u + x / 4u][x % 4u]);
                }
//% endif
                ${ store | indent(16) }
            }
        }
        subgroupBarrier();
    }
}
