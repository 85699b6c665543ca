${ head }
//% set sums_type = "coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>"
//% set left_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>"
//% set right_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>"
//% set lanes = 32 * subgroups
// Words of 16 bytes: ${ "two tiles" if buffers == 2 else "a tile" } of ${ keys } keys and as many values in ${ element.name }, rows with eight elements more so that neighbours lie in
// different banks. Before and after, the same holds the queries and the results of each subgroup.
shared uvec4 words[${ words }];
// Of the rows of each subgroup${ ", later of each slice" if slices > 1 }: the base of exponents, later a factor, and the sum of weights.
shared float bases[${ states }], totals[${ states }];
//% if slices > 1
// Of each tile, slice and row: the weighted values, in an order in which invocations side by side read neighbours, the base of
// their exponents, and the sum of weights.
${ partials }
//% endif
// A tile of ${ m } rows a workgroup: the queries of all heads that share keys are rows, those of one position side by side. ${ sharing } subgroups have
// the same 16 rows, and each has 16 keys of a tile. Softmax and fragments are as in attention_flash_registers.comp: of an
// accumulator, and of a left operand likewise, element x of the lane 4 r + c is that of row r + 8 (x / 4), column
// 2 c + x % 2 + 8 (x / 2 % 2).
//% macro ask(t0)
//% for o in staged
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
    const uint at = ${ t0 } + ${ o.row }, t = min(at, keys - 1u), part = ${ o.part };
    ${ o.lines | indent(4) }
    next_${ o.name }[i] = ${ o.load };
//% if o.name == "values" and ragged
    // A weight of 0 times an infinite value would be no number.
    if (at >= keys) next_values[i] = uvec4(0u);
//% endif
}
//% endfor
//% endmacro
//% macro keep(tile)
//% for o in staged
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
//% if o.all % lanes != 0
    if (i * ${ lanes }u + lane < ${ o.all }u)
//% endif
    words[${ tile } + ${ o.at ~ "u + " if o.at }(${ o.row }) * ${ o.across + 1 }u + ${ o.part }] = next_${ o.name }[i];
}
//% endfor
//% endmacro
void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_SubgroupInvocationID / 4u, c = gl_SubgroupInvocationID % 4u;
    const uint block = gl_SubgroupID / ${ sharing }u, mine = gl_SubgroupID % ${ sharing }u, own = gl_SubgroupID * ${ per_subgroup }u;
//% if causal
    // What has most keys first, so that the last to finish are short.
    const uint tile = gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;
//% else
    const uint tile = gl_WorkGroupID.x;
//% endif
    const uint g = gl_WorkGroupID.y, row0 = tile * ${ m }u, first = row0 + block * 16u;
    ${ prelude | indent(4) }
    const uint keys = ${ t }, last_row = ${ s_extent }${ " * " ~ group ~ "u" if group > 1 } - 1u;
//% if causal or window
    // Keys up to a query's own, i + 1 + T - S, which is below 0 where queries outnumber keys: of the tile's first and last row.
    const uint since = row0 / ${ group }u + 1u + keys, until = min(row0 + ${ m - 1 }u, last_row) / ${ group }u + 1u + keys;
    const uint earliest = since > ${ s_extent } ? since - ${ s_extent } : 0u, latest = until > ${ s_extent } ? until - ${ s_extent } : 0u;
//% endif
    const uint start = ${ "earliest > " ~ window ~ "u ? earliest - " ~ window ~ "u : 0u" if window else "0u" };
    const uint stop = ${ "latest" if causal else "keys" };
//% if slices > 1
    // Each slice is whole tiles of keys.
    const uint seen = stop - start, each = max((seen + ${ keys * slices - 1 }u) / ${ keys * slices }u, 1u) * ${ keys }u;
    const uint parts = max((seen + each - 1u) / each, 1u), begin = start + gl_WorkGroupID.z * each;
    if (gl_WorkGroupID.z >= parts) return;
    const uint end = min(begin + each, stop);
//% else
    const uint begin = start, end = stop;
//% endif
    uvec4 next_keys[${ staged[0].each }], next_values[${ staged[1].each }];
    if (begin < end) {
        ${ ask("begin") | indent(8) }
    }
    ${ left_type } q[${ d // 16 }];
    [[unroll]] for (uint p = 0u; p < ${ d // piece }u; ++p) {
        for (uint i = gl_SubgroupInvocationID; i < ${ 2 * piece }u; i += 32u) {
            const uint row = min(first + i / ${ piece // 8 }u, last_row), s = row / ${ group }u, h = g * ${ group }u + row % ${ group }u;
            const uint part = p * ${ piece // 8 }u + i % ${ piece // 8 }u;
            ${ q_lines | indent(12) }
            words[own + i / ${ piece // 8 }u * ${ stride }u + i % ${ piece // 8 }u] = ${ q };
        }
        subgroupBarrier();
        [[unroll]] for (uint i = 0u; i < ${ piece // 16 }u; ++i) {
            coopMatLoad(q[p * ${ piece // 16 }u + i], words, own + i * 2u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
    }
    barrier();
    if (begin < end) {
        ${ keep("0u") | indent(8) }
    }
    barrier();
    const float hidden = ${ hidden };
    // Exponents are relative to a score that was the largest when it was chosen, and another is chosen once a score is above the
    // limit.
    float limit[2], base[2], sum[2];
//% if causal or window
    // Keys up to the position of a row's query.
    int past[2];
//% endif
    [[unroll]] for (uint y = 0u; y < 2u; ++y) {
        limit[y] = hidden;
        base[y] = 0.0;
        sum[y] = 0.0;
//% if causal or window
        past[y] = int((first + r + y * 8u) / ${ group }u + 1u + keys) - int(${ s_extent });
//% endif
    }
    ${ sums_type } sums[${ e // 16 }];
    [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) sums[i] = ${ sums_type }(0.0);
//% if buffers == 2
    uint held = 0u;
//% else
    const uint held = 0u;
//% endif
    [[dont_unroll]] for (uint t0 = begin; t0 < end; t0 += ${ keys }u) {
        ${ ask("t0 + " ~ keys ~ "u") | indent(8) }
        ${ sums_type } score = ${ sums_type }(0.0);
        [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) {
            ${ right_type } k;
            coopMatLoad(k, words, held + mine * ${ 16 * (d // 8 + 1) }u + i * 2u, ${ d // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
            score = coopMatMulAdd(q[i], k, score);
        }
//% if plain is false or causal or window or ragged
        // The lane's first key.
        const uint key = t0 + mine * 16u + 2u * c;
        [[unroll]] for (uint x = 0u; x < 8u; ++x) {
            const uint column = x / 2u % 2u * 8u + x % 2u;
//% if plain is false
            float value = score[x] * ${ scale };
//% if cap
            value = ${ cap } * ${ capped };
//% endif
//% if bias
            const uint row = min(first + r + x / 4u * 8u, last_row), s = row / ${ group }u, h = g * ${ group }u + row % ${ group }u;
            const uint t = min(key + column, keys - 1u);
            ${ t_lines | indent(12) }
            value += ${ bias };
//% endif
            score[x] = value;
//% endif
//% if causal or window or ragged
            if (int(key + column) >= ${ "past[x / 4u]" if causal else "int(keys)" }${ " || int(key + column) < past[x / 4u] - " ~ window if window }) score[x] = hidden;
//% endif
        }
//% endif
        // A NaN may or may not be the largest: it makes all of its row NaN by its own weight.
        float most[2];
        [[unroll]] for (uint y = 0u; y < 2u; ++y) {
            most[y] = score[y * 4u];
            [[unroll]] for (uint x = 1u; x < 4u; ++x) most[y] = max(most[y], score[y * 4u + x]);
        }
        if (subgroupAny(most[0] > limit[0] || most[1] > limit[1])) {
            [[unroll]] for (uint y = 0u; y < 2u; ++y) {
                float now = max(most[y], subgroupShuffleXor(most[y], 1u));
                now = max(now, subgroupShuffleXor(now, 2u));
                const bool moves = now > limit[y];
                const float other = moves ? now * ${ to_exponent } - 9.0 : base[y];
                const float factor = limit[y] == hidden ? 0.0 : exp2(base[y] - other);
                limit[y] = moves ? now + ${ head_room } : limit[y];
                base[y] = other;
                sum[y] *= factor;
                [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[i][y * 4u + x] *= factor;
            }
        }
        ${ left_type } weights;
//% if not rounds
        // What f16 cuts off of a weight is another, so that both hold 22 bits of it.
        ${ left_type } rests;
//% endif
        [[unroll]] for (uint x = 0u; x < 8u; ++x) {
            const float weight = exp2(fma(score[x], ${ to_exponent }, -base[x / 4u]));
            sum[x / 4u] += weight;
//% if rounds and element.name == "f16"
            weights[x] = ${ element.ty }(weight);
//% elif rounds
            // Rounded in bits to the nearest: Vulkan leaves open how conversions to bf16 round.
            const uint bits = floatBitsToUint(weight);
            weights[x] = ${ element.ty }(uintBitsToFloat((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u));
//% else
            // Cut off in bits: drivers take a cast to f16 and back for nothing.
            const float cut = uintBitsToFloat(floatBitsToUint(weight) & 0xffffe000u);
            weights[x] = float16_t(cut);
            rests[x] = float16_t(weight - cut);
//% endif
        }
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) {
            ${ right_type } v;
            coopMatLoad(v, words, held + ${ values0 }u + mine * ${ 16 * (e // 8 + 1) }u + i * 2u, ${ e // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
            sums[i] = coopMatMulAdd(weights, v, sums[i]);
//% if not rounds
            sums[i] = coopMatMulAdd(rests, v, sums[i]);
//% endif
        }
//% if buffers == 2
        held = ${ tile }u - held;
//% else
        barrier();
//% endif
        ${ keep("held") | indent(8) }
        barrier();
    }
    [[unroll]] for (uint y = 0u; y < 2u; ++y) {
        sum[y] += subgroupShuffleXor(sum[y], 1u);
        sum[y] += subgroupShuffleXor(sum[y], 2u);
        bases[gl_SubgroupID * 16u + y * 8u + r] = base[y];
        totals[gl_SubgroupID * 16u + y * 8u + r] = sum[y];
    }
    barrier();
    // All subgroups of a row become relative to their largest base. The largest weight is above 0, so a sum of 0 is that of a
    // query that sees no key.
    float top[2], total[2];
    [[unroll]] for (uint y = 0u; y < 2u; ++y) {
        top[y] = hidden;
        total[y] = 0.0;
        [[unroll]] for (uint p = 0u; p < ${ sharing }u; ++p) {
            const uint at = (block * ${ sharing }u + p) * 16u + y * 8u + r;
            if (totals[at] != 0.0) top[y] = max(top[y], bases[at]);
        }
        [[unroll]] for (uint p = 0u; p < ${ sharing }u; ++p) {
            const uint at = (block * ${ sharing }u + p) * 16u + y * 8u + r;
            total[y] += totals[at] == 0.0 ? 0.0 : totals[at] * exp2(bases[at] - top[y]);
        }
//% if sink
        // Relative to the sink where that is larger, in two steps: neither the sum nor a factor leaves the range of f32.
        float fade = 1.0;
        if (${ "parts == 1u && " if slices > 1 }total[y] != 0.0) {
            const uint h = g * ${ group }u + (first + r + y * 8u) % ${ group }u;
            ${ sink.lines | indent(12) }
            const float over = fma(${ sink.value }, ${ sink_to_exponent }, -top[y]);
            fade = exp2(-0.5 * max(over, 0.0));
            total[y] = fma(total[y] * fade, fade, exp2(min(over, 0.0)));
        }
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[i][y * 4u + x] *= fade;
//% endif
        float factor = sum[y] == 0.0 ? 0.0 : exp2(base[y] - top[y]);
        ${ "if (parts == 1u) " if slices > 1 }factor = total[y] == 0.0 ? 0.0 : ${ "fade * " if sink }factor / total[y];
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 4u; ++x) sums[i][y * 4u + x] *= factor;
    }
//% if slices > 1
    const uint slice0 = (g * ${ tiles }u + tile) * ${ slices }u, to = (slice0 + gl_WorkGroupID.z) * ${ m }u + block * 16u;
    if (parts > 1u && mine == 0u && c == 0u) {
        [[unroll]] for (uint y = 0u; y < 2u; ++y) {
            partials[(to + y * 8u + r) * ${ e + 2 }u + ${ e }u] = top[y];
            partials[(to + y * 8u + r) * ${ e + 2 }u + ${ e + 1 }u] = total[y];
        }
    }
//% endif
    // ${ columns } columns at a time. Compared, not taken as an index, which would put the matrices into memory.
    for (uint n = 0u; n < ${ e // columns }u; ++n) {
        [[unroll]] for (uint i = 0u; i < ${ e // columns }u; ++i) {
            if (i != n) continue;
            [[unroll]] for (uint j = 0u; j < ${ columns // 16 }u; ++j) {
                coopMatStore(sums[i * ${ columns // 16 }u + j], words, own + j * 4u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        barrier();
        for (uint at = mine * 32u + gl_SubgroupInvocationID; at < ${ 16 * columns // size }u; at += ${ 32 * sharing }u) {
            const uint y = at / ${ columns // size }u, part = at % ${ columns // size }u, piece = n * ${ columns // size }u + part;
            if (first + y <= last_row) {
                float found[${ size }];
                [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) {
                    const uint x = part * ${ size }u + j;
                    found[j] = 0.0;
                    [[unroll]] for (uint p = 0u; p < ${ sharing }u; ++p)
                        found[j] += uintBitsToFloat(words[(block * ${ sharing }u + p) * ${ per_subgroup }u + y * ${ stride }u + x / 4u][x % 4u]);
                }
//% if slices > 1
                if (parts > 1u) {
                    [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) partials[(to + y) * ${ e + 2 }u + j * ${ e // size }u + piece] = found[j];
                    continue;
                }
//% endif
                const uint s = (first + y) / ${ group }u, h = g * ${ group }u + (first + y) % ${ group }u;
                ${ store | indent(16) }
            }
        }
        barrier();
    }
//% if slices > 1
    if (parts == 1u) return;
    ${ elect | indent(4) }
    for (uint i = lane; i < ${ m }u * parts; i += ${ lanes }u) {
        const uint at = ((slice0 + i % parts) * ${ m }u + i / parts) * ${ e + 2 }u;
        bases[i] = partials[at + ${ e }u];
        totals[i] = partials[at + ${ e + 1 }u];
    }
    barrier();
    for (uint i = lane; i < ${ m }u; i += ${ lanes }u) {
        float top = hidden, total = 0.0;
        for (uint p = i * parts; p < (i + 1u) * parts; ++p) if (totals[p] != 0.0) top = max(top, bases[p]);
        for (uint p = i * parts; p < (i + 1u) * parts; ++p) {
            bases[p] = totals[p] == 0.0 ? 0.0 : exp2(bases[p] - top);
            total += totals[p] * bases[p];
        }
//% if sink
        float fade = 1.0;
        if (total != 0.0) {
            const uint h = g * ${ group }u + (row0 + i) % ${ group }u;
            ${ sink.lines | indent(12) }
            const float over = fma(${ sink.value }, ${ sink_to_exponent }, -top);
            fade = exp2(-0.5 * max(over, 0.0));
            total = fma(total * fade, fade, exp2(min(over, 0.0)));
        }
        for (uint p = i * parts; p < (i + 1u) * parts; ++p) {
            bases[p] = total == 0.0 ? 0.0 : bases[p] * fade / total;
            totals[p] = fade;
        }
//% else
        for (uint p = i * parts; p < (i + 1u) * parts; ++p) bases[p] = total == 0.0 ? 0.0 : bases[p] / total;
//% endif
    }
    barrier();
    for (uint at = lane; at < ${ m * e // size }u; at += ${ lanes }u) {
        const uint y = at / ${ e // size }u, piece = at % ${ e // size }u, row = row0 + y;
        if (row > last_row) break;
        float found[${ size }];
        [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) found[j] = 0.0;
        // Loads of four slices are in flight together.
        for (uint p0 = 0u; p0 < parts; p0 += 4u) [[unroll]] for (uint p = 0u; p < 4u; ++p) {
            const uint slice = min(p0 + p, parts - 1u), from = ((slice0 + slice) * ${ m }u + y) * ${ e + 2 }u + piece;
            const float factor = bases[y * parts + slice];
            [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) found[j] = p0 + p < parts ? fma(factor, partials[from + j * ${ e // size }u], found[j]) : found[j];
        }
//% if sink
        [[unroll]] for (uint j = 0u; j < ${ size }u; ++j) found[j] *= totals[y * parts];
//% endif
        const uint s = row / ${ group }u, h = g * ${ group }u + row % ${ group }u;
        ${ store | indent(8) }
    }
//% endif
}
