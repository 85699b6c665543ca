${ head }
//% set sums_type = "coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>"
//% set left_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>"
//% set right_type = "coopmat<" ~ element.ty ~ ", gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>"
//% set own_row, other_row = ("t", "s") if keys else ("s", "t")
//% set own_extent, other_extent = (t, s_extent) if keys else (s_extent, t)
// Words of 16 bytes: two tiles of ${ others } ${ "queries and as many gradients" if keys else "keys and as many values" } in ${ element.name }, rows with eight elements more so that
// neighbours lie in different banks. Before and after, the same holds the rows and the results of each subgroup.
shared uvec4 words[${ words }];
//% if keys
// Logarithms of sums (base 2) and means of the queries of both tiles.
shared vec2 of_rows[${ 2 * others }];
//% endif
// One head and ${ rows } ${ "keys" if keys else "queries" } a workgroup, ${ blocks * 16 } a subgroup; weights are computed again (Dao et al., arXiv 2205.14135, 2307.08691). Scores have
// a row of the subgroup's ${ "keys" if keys else "queries" } and a column of the other side. Of an accumulator, and of a left operand likewise, element x of the
// lane 4 r + c is that of row r + 8 (x / 4), column 2 c + x % 2 + 8 (x / 2 % 2).
//% macro ask(other0, all)
//% for o in staged if all or o.name == "first"
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
    const uint ${ other_row } = min(${ other0 } + ${ o.row }, ${ other_extent } - 1u), part = ${ o.part };
    ${ o.lines | indent(4) }
    next_${ o.name }[i] = ${ o.load };
}
//% endfor
//% if keys
if (lane < ${ others }u) {
    const uint s = min(${ other0 } + lane, ${ s_extent } - 1u);
    ${ row_lines | indent(4) }
    next_row = vec2(${ of_sums } * ${ log2_e }, ${ means });
}
//% endif
//% endmacro
//% macro keep(tile, all)
//% for o in staged if all or o.name == "first"
[[unroll]] for (uint i = 0u; i < ${ o.each }u; ++i) {
//% if o.all % (subgroups * 32) != 0
    if (i * ${ subgroups * 32 }u + lane < ${ o.all }u)
//% endif
    words[${ tile } * ${ tile_words }u + ${ o.at ~ "u + " if o.at }(${ o.row }) * ${ o.across + 1 }u + ${ o.part }] = next_${ o.name }[i];
}
//% endfor
//% if keys
if (lane < ${ others }u) of_rows[${ tile } * ${ others }u + lane] = next_row;
//% endif
//% endmacro
//% macro scores()
${ sums_type } score[${ blocks }][${ others // 16 }];
[[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) score[b][j] = ${ sums_type }(0.0);
[[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) {
    ${ right_type } right;
    coopMatLoad(right, words, at * ${ tile_words }u + j * ${ 16 * (d // 8 + 1) }u + i * 2u, ${ d // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) score[b][j] = coopMatMulAdd(own_0[b][i], right, score[b][j]);
}
//% if masked
// Whether a pair of the tile is hidden, and of the lane's first pair by how many positions the key is past the query's own.
//% set beyond = "other0 + " ~ others ~ "u > " ~ other_extent if ragged else "false"
//% set ahead = "int(own0 + " ~ (rows - 1) ~ "u) - int(other0)" if keys else "int(other0 + " ~ (others - 1) ~ "u) - int(own0)"
const bool masks = ${ "true" if window else beyond ~ (" || " ~ ahead ~ " > reach" if causal else "") };
const int past = ${ "int(first + r) - int(other0 + 2u * c)" if keys else "int(other0 + 2u * c) - int(first + r)" } - reach;
//% endif
//% endmacro
//% macro adjusted()
const uint row = b * 16u + x / 4u * 8u, column = j * 16u + x / 2u % 2u * 8u + x % 2u;
float value = score[b][j][x];
//% if plain is false
value *= ${ scale };
//% if cap
value = ${ cap } * ${ capped };
const float slope = 1.0 - value / ${ cap } * (value / ${ cap });
//% endif
//% if bias
{
    const uint ${ own_row } = min(first + r + row, ${ own_extent } - 1u), ${ other_row } = min(other0 + 2u * c + column, ${ other_extent } - 1u);
    ${ bias_lines | indent(4) }
    value += ${ bias };
}
//% endif
//% endif
//% if masked
if (masks) {
//% if ragged
    if (other0 + 2u * c + column >= ${ other_extent }) value = hidden;
//% endif
//% set ahead = "past + int(row) - int(column)" if keys else "past + int(column) - int(row)"
//% if causal
    if (${ ahead } > 0) value = hidden;
//% endif
//% if window
    if (${ ahead } <= -${ window }) value = hidden;
//% endif
}
//% endif
//% endmacro
//% if element.name == "bf16"
// Rounded in bits to the nearest: Vulkan leaves open how conversions to bf16 round.
${ element.ty } rounded(float x) {
    const uint bits = floatBitsToUint(x);
    return ${ element.ty }(isnan(x) ? x : uintBitsToFloat((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u));
}
//% else
${ element.ty } rounded(float x) {
    return ${ element.ty }(x);
}
//% endif
void main() {
    const uint lane = gl_LocalInvocationIndex, r = gl_SubgroupInvocationID / 4u, c = gl_SubgroupInvocationID % 4u;
//% if causal and not keys
    // What has most keys first, so that the last to finish are short.
    const uint own0 = (gl_NumWorkGroups.y - 1u - gl_WorkGroupID.y) * ${ rows }u;
//% else
    const uint own0 = gl_WorkGroupID.y * ${ rows }u;
//% endif
    const uint first = own0 + gl_SubgroupID * ${ blocks * 16 }u, own = gl_SubgroupID * ${ per_subgroup }u;
//% if keys
    const uint g = gl_WorkGroupID.x;
//% else
    const uint h = gl_WorkGroupID.x, g = h / ${ group }u;
//% endif
    ${ prelude | indent(4) }
    const float hidden = ${ hidden };
//% for o in own_rows
    ${ left_type } own_${ loop.index0 }[${ blocks }][${ o.width // 16 }];
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) {
        for (uint i = gl_SubgroupInvocationID; i < ${ 2 * o.width }u; i += 32u) {
            const uint ${ own_row } = min(first + b * 16u + i / ${ o.width // 8 }u, ${ own_extent } - 1u), part = i % ${ o.width // 8 }u;
            ${ o.lines | indent(12) }
            words[own + i / ${ o.width // 8 }u * ${ o.width // 8 + 1 }u + part] = ${ o.load };
        }
        subgroupBarrier();
        [[unroll]] for (uint i = 0u; i < ${ o.width // 16 }u; ++i) {
            coopMatLoad(own_${ loop.index0 }[b][i], words, own + i * 2u, ${ o.width // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
    }
//% endfor
    barrier();
    // A key is seen by queries at its own position, less the number of keys before the first query, and after. Whole tiles, so that
    // none but the last has rows beyond the end.
    const int reach = int(${ t }) - int(${ s_extent });
    const uint own1 = min(own0 + ${ rows }u, ${ own_extent });
//% if keys
    const uint begin = ${ "uint(max(int(own0) - reach, 0)) / " ~ others ~ "u * " ~ others ~ "u" if causal else "0u" };
    const uint end = ${ "uint(clamp(int(own1) - 1 + " ~ window ~ " - reach, 0, int(" ~ s_extent ~ ")))" if window else s_extent };
//% else
    const uint begin = ${ "uint(max(int(own0) + 1 + reach - " ~ window ~ ", 0)) / " ~ others ~ "u * " ~ others ~ "u" if window else "0u" };
    const uint end = ${ "uint(clamp(int(own1) + reach, 0, int(" ~ t ~ ")))" if causal else t };
//% endif
    ${ sums_type } sums_0[${ blocks }][${ d // 16 }];
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) sums_0[b][i] = ${ sums_type }(0.0);
//% if keys
    ${ sums_type } sums_1[${ blocks }][${ e // 16 }];
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) sums_1[b][i] = ${ sums_type }(0.0);
    vec2 next_row = vec2(0.0);
//% endif
    uvec4 next_first[${ staged[0].each }], next_second[${ staged[1].each }];
    uint at = 0u;
//% if keys
    for (uint h = g * ${ group }u; h < (g + 1u) * ${ group }u; ++h) {
//% else
    // Largest scores of each lane's columns, and sums of exponentials relative to them.
    float top[${ 2 * blocks }], part_sum[${ 2 * blocks }];
    [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
        top[y] = hidden;
        part_sum[y] = 0.0;
    }
    if (begin < end) {
        ${ ask("begin", false) | indent(8) }
        ${ keep("0u", false) | indent(8) }
    }
    barrier();
    [[dont_unroll]] for (uint other0 = begin; other0 < end; other0 += ${ others }u) {
        ${ ask("other0 + " ~ others ~ "u", false) | indent(8) }
        ${ scores() | indent(8) }
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) [[unroll]] for (uint x = 0u; x < 8u; ++x) {
            ${ adjusted() | indent(12) }
            score[b][j][x] = value;
        }
        // A NaN may or may not be the largest: it makes the sum NaN by its own exponential.
        [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
            float now = top[y];
            [[unroll]] for (uint x = 0u; x < ${ others // 4 }u; ++x) now = max(now, score[y / 2u][x / 4u][y % 2u * 4u + x % 4u]);
            const float base = now == hidden ? 0.0 : now * ${ to_exponent };
            float all = part_sum[y] * exp2(fma(top[y], ${ to_exponent }, -base));
            [[unroll]] for (uint x = 0u; x < ${ others // 4 }u; ++x) all += exp2(fma(score[y / 2u][x / 4u][y % 2u * 4u + x % 4u], ${ to_exponent }, -base));
            top[y] = now;
            part_sum[y] = all;
        }
        at = 1u - at;
        ${ keep("at", false) | indent(8) }
        barrier();
    }
    // Of each lane's rows: the logarithm (base 2) of the sum of exponentials, and the mean.
    float log_sum[${ 2 * blocks }], mean[${ 2 * blocks }];
    [[unroll]] for (uint y = 0u; y < ${ 2 * blocks }u; ++y) {
        float most = max(top[y], subgroupShuffleXor(top[y], 1u));
        most = max(most, subgroupShuffleXor(most, 2u));
        const float base = most == hidden ? 0.0 : most * ${ to_exponent };
        float all = part_sum[y] * exp2(fma(top[y], ${ to_exponent }, -base));
        all += subgroupShuffleXor(all, 1u);
        all += subgroupShuffleXor(all, 2u);
        // A sum of 0 is that of a query that sees no key.
        log_sum[y] = all == 0.0 ? ${ infinity } : base + log2(all);
        const uint s = min(first + r + y * 8u, ${ s_extent } - 1u);
        ${ row_lines | indent(8) }
        mean[y] = ${ means };
        if (c == 0u && first + r + y * 8u < ${ s_extent }) {
            const float found = log_sum[y] * ${ ln_2 };
            ${ store_sums | indent(12) }
        }
    }
//% endif
    // What another subgroup still reads, or what the loop before left.
    barrier();
    if (begin < end) {
        ${ ask("begin", true) | indent(8) }
        ${ keep("0u", true) | indent(8) }
    }
    at = 0u;
    barrier();
    [[dont_unroll]] for (uint other0 = begin; other0 < end; other0 += ${ others }u) {
        ${ ask("other0 + " ~ others ~ "u", true) | indent(8) }
        ${ scores() | indent(8) }
        ${ sums_type } slopes[${ blocks }][${ others // 16 }];
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) slopes[b][j] = ${ sums_type }(0.0);
        [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) {
            ${ right_type } right;
            coopMatLoad(right, words, at * ${ tile_words }u + ${ values0 }u + j * ${ 16 * (e // 8 + 1) }u + i * 2u, ${ e // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) slopes[b][j] = coopMatMulAdd(own_1[b][i], right, slopes[b][j]);
        }
        [[unroll]] for (uint j = 0u; j < ${ others // 16 }u; ++j) {
            ${ left_type } dx[${ blocks }];
//% if keys
            ${ left_type } weights[${ blocks }];
//% endif
            [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint x = 0u; x < 8u; ++x) {
                ${ adjusted() | indent(16) }
//% if keys
                const vec2 of_row = of_rows[at * ${ others }u + 2u * c + column];
                const float log_sum_here = of_row.x, mean_here = of_row.y;
//% else
                const float log_sum_here = log_sum[2u * b + x / 4u], mean_here = mean[2u * b + x / 4u];
//% endif
                const float weight = value == hidden ? 0.0 : exp2(fma(value, ${ to_exponent }, -log_sum_here));
                // What has no weight has no gradient, however steep.
                const float by_score = weight == 0.0 ? 0.0 : weight * (slopes[b][j][x] - mean_here)${ " * slope" if cap };
                dx[b][x] = rounded(by_score);
//% if keys
                weights[b][x] = rounded(weight);
//% endif
            }
            [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) {
                ${ right_type } right;
                coopMatLoad(right, words, at * ${ tile_words }u + j * ${ 16 * (d // 8 + 1) }u + i * 2u, ${ d // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) sums_0[b][i] = coopMatMulAdd(dx[b], right, sums_0[b][i]);
            }
//% if keys
            [[unroll]] for (uint i = 0u; i < ${ e // 16 }u; ++i) {
                ${ right_type } right;
                coopMatLoad(right, words, at * ${ tile_words }u + ${ values0 }u + j * ${ 16 * (e // 8 + 1) }u + i * 2u, ${ e // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) sums_1[b][i] = coopMatMulAdd(weights[b], right, sums_1[b][i]);
            }
//% endif
        }
        at = 1u - at;
        ${ keep("at", true) | indent(8) }
        barrier();
    }
//% if keys
    }
//% endif
    [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ d // 16 }u; ++i) [[unroll]] for (uint x = 0u; x < 8u; ++x) sums_0[b][i][x] *= ${ scale };
    // Some columns of a matrix's rows at a time. Compared, not taken as an index, which would put the matrices into memory: so
    // would loops over invocations' elements inside of unrolled ones.
//% for o in stores
    for (uint n = 0u; n < ${ blocks * o.width // o.columns }u; ++n) {
        [[unroll]] for (uint b = 0u; b < ${ blocks }u; ++b) [[unroll]] for (uint i = 0u; i < ${ o.width // o.columns }u; ++i) {
            if (b * ${ o.width // o.columns }u + i != n) continue;
            [[unroll]] for (uint j = 0u; j < ${ o.columns // 16 }u; ++j) {
                coopMatStore(sums_${ loop.index0 }[b][i * ${ o.columns // 16 }u + j], words, own + j * 4u, ${ o.columns // 4 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        subgroupBarrier();
        for (uint k = gl_SubgroupInvocationID; k < ${ 16 * o.columns // o.size }u; k += 32u) {
            const uint row = k / ${ o.columns // o.size }u, part = k % ${ o.columns // o.size }u;
            const uint ${ own_row } = first + n / ${ o.width // o.columns }u * 16u + row, piece = n % ${ o.width // o.columns }u * ${ o.columns // o.size }u + part;
            if (${ own_row } < ${ own_extent }) {
                float found[${ o.size }];
                [[unroll]] for (uint j = 0u; j < ${ o.size }u; ++j) {
                    const uint x = part * ${ o.size }u + j;
                    found[j] = uintBitsToFloat(words[own + row * ${ o.columns // 4 + 1 }u + x / 4u][x % 4u]);
                }
                ${ o.lines | indent(16) }
            }
        }
        subgroupBarrier();
    }
//% endfor
}
