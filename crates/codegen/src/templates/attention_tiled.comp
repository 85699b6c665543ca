${ head }
shared vec4 queries[${ m * query_stride }];
// Part of a tile of keys, then of values.
shared vec4 staged[${ staged }];
shared vec4 weights[${ m * weight_stride }];
shared float partials[${ m * columns }];
//% if splits > 1
// Of each tile, part of its keys and row: the weighted values, the largest score, and the sum of weights.
${ parts }
//% endif
//% macro stage(o)
//% set each = o.across * o.count
[[unroll]] for (uint x = 0u; x < ${ (each + workgroup - 1) // workgroup }u; ++x) {
    const uint i = x * ${ workgroup }u + lane;
//% if each % workgroup
    if (i >= ${ each }u) break;
//% endif
    const uint place = i / ${ o.across }u, ${ o.name } = ${ o.first }i % ${ o.across }u * 8u;
    ${ o.row | indent(4) }
    float w[8];
//% if not o.eights
    {
        ${ o.row_lines | indent(8) }
        const uint first = ${ o.name };
        [[unroll]] for (uint c = 0u; c < 8u; ++c) {
            const uint ${ o.name } = first + c;
            w[c] = 0.0;
            if (${ o.name } < ${ o.width }u) {
                ${ o.lines | indent(16) }
                w[c] = ${ o.load };
            }
        }
    }
//% elif o.padded
    [[unroll]] for (uint c = 0u; c < 8u; ++c) w[c] = 0.0;
    if (${ o.name } < ${ o.width }u) {
        ${ o.row_lines | indent(8) }
        ${ o.load }
    }
//% else
    ${ o.row_lines | indent(4) }
    ${ o.load }
//% endif
//% if o.beyond
    if (${ o.beyond }) w = float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
//% endif
    const uint to = ${ o.to };
    ${ o.array }[to] = vec4(w[0], w[1], w[2], w[3])${ o.factor };
    ${ o.array }[to + 1u] = vec4(w[4], w[5], w[6], w[7])${ o.factor };
}
//% endmacro
//% macro accumulate(condition)
[[unroll]] for (uint j = 0u; j < ${ chunk_v // 4 }u; ++j) {
    vec4 p[${ rows }];
    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) p[i] = weights[(row0 + i) * ${ weight_stride }u + j0 / 4u + j];
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) {
            const vec4 v = staged[(j * 4u + c) * ${ columns * values }u + x * ${ columns }u + column];
            [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i)
                ${ condition }acc[i * ${ values }u + x] = fma(vec4(p[i][c]), v, acc[i * ${ values }u + x]);
        }
    }
}
//% endmacro
// A tile of ${ m } rows a workgroup: the queries of all heads that share keys are rows, those of one position side by side. It loops over
// tiles of ${ n } keys. An invocation has ${ rows } rows, of which it computes 4 scores a tile and ${ 4 * values } columns of the result. The softmax is
// kept online: a new maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867).
void main() {
    const uint lane = gl_LocalInvocationIndex, column = lane % ${ columns }u, row0 = lane / ${ columns }u * ${ rows }u;
//% if causal
    // Tiles with the most keys start first, so that short ones finish last.
    const uint tile = gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;
//% else
    const uint tile = gl_WorkGroupID.x;
//% endif
    const uint g = gl_WorkGroupID.y, first_row = tile * ${ m }u;
    ${ prelude | indent(4) }
    const uint keys = ${ t }, last_row = ${ s_extent }${ " * " ~ group ~ "u" if group > 1 } - 1u;
//% if causal or window
    // Keys up to a query's own, i + 1 + T - S, which is below 0 where queries outnumber keys: of the tile's first and last row.
    const uint since = first_row / ${ group }u + 1u + keys, until = min(first_row + ${ m - 1 }u, last_row) / ${ group }u + 1u + keys;
    const uint earliest = since > ${ s_extent } ? since - ${ s_extent } : 0u, latest = until > ${ s_extent } ? until - ${ s_extent } : 0u;
//% endif
    const uint start = ${ "earliest > " ~ window ~ "u ? earliest - " ~ window ~ "u : 0u" if window else "0u" };
    const uint seen = ${ "latest" if causal else "keys" } - start;
//% if splits > 1
    // Each part is whole tiles of keys.
    const uint each = max((seen + ${ n * splits - 1 }u) / ${ n * splits }u, 1u) * ${ n }u;
    const uint parts = max((seen + each - 1u) / each, 1u), from = start + gl_WorkGroupID.z * each;
    if (gl_WorkGroupID.z >= parts) return;
    const uint end = min(from + each, start + seen);
//% else
    const uint from = start, end = start + seen;
//% endif
    ${ stage(q) | indent(4) }
    const float hidden = ${ hidden };
    float tops[${ rows }], sums[${ rows }];
    vec4 acc[${ rows * values }];
    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
        tops[i] = hidden;
        sums[i] = 0.0;
    }
    [[unroll]] for (uint i = 0u; i < ${ rows * values }u; ++i) acc[i] = vec4(0.0);
    for (uint t0 = from; t0 < end; t0 += ${ n }u) {
        vec4 scores[${ rows }];
        [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) scores[i] = vec4(0.0);
        for (uint d0 = 0u; d0 < ${ depth }u; d0 += ${ chunk }u) {
//% if depth > chunk
            if (d0 > 0u) barrier();
//% endif
            ${ stage(k) | indent(12) }
            barrier();
            [[unroll]] for (uint d = 0u; d < ${ chunk // 4 }u; ++d) {
                vec4 k[4];
                [[unroll]] for (uint j = 0u; j < 4u; ++j) k[j] = staged[(j * ${ columns }u + column) * ${ chunk // 4 + 1 }u + d];
                [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
                    const vec4 q = queries[(row0 + i) * ${ query_stride }u + d0 / 4u + d];
                    [[unroll]] for (uint j = 0u; j < 4u; ++j)
                        scores[i][j] = fma(q.x, k[j].x, fma(q.y, k[j].y, fma(q.z, k[j].z, fma(q.w, k[j].w, scores[i][j]))));
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
            const uint r = min(first_row + row0 + i, last_row), s = r / ${ group }u, h = g * ${ group }u + r % ${ group }u;
//% if causal or window
            const uint past = s + 1u + keys, own = past > ${ s_extent } ? past - ${ s_extent } : 0u;
//% endif
            float largest = hidden;
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                const uint at = t0 + column * 4u + j, t = min(at, end - 1u);
                float score = scores[i][j];
//% if cap
                score = ${ cap } * ${ capped };
//% endif
//% if bias
                ${ t_lines | indent(16) }
                score += ${ bias };
//% endif
                score = ${ "at < min(own, end)" if causal else "at < end" }${ " && at + " ~ window ~ "u >= own" if window } ? score : hidden;
                scores[i][j] = score;
                largest = max_of(largest, score);
            }
            partials[(row0 + i) * ${ columns }u + column] = largest;
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
            const float top = tops[i];
            float now = top;
            [[unroll]] for (uint x = 0u; x < ${ columns }u; ++x) now = max_of(now, partials[(row0 + i) * ${ columns }u + x]);
            // Where all scores so far are hidden, so is their maximum, and infinity less infinity is no number.
            const float rescale = top == hidden ? 0.0 : ${ exp_top };
            vec4 p;
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                const float score = scores[i][j];
                p[j] = score == hidden ? 0.0 : ${ exp_score };
            }
            weights[(row0 + i) * ${ weight_stride }u + column] = p;
            sums[i] = fma(sums[i], rescale, p.x + p.y + p.z + p.w);
            [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) acc[i * ${ values }u + x] *= rescale;
            tops[i] = now;
        }
//% if causal or window
        // Some rows do not see all keys: what they do not see may be no number, and 0 times that is none either.
        const bool ragged = ${ "min(t0 + " ~ n ~ "u, end) > earliest" if causal }${ " || " if causal and window }${ "t0 + " ~ window ~ "u < latest" if window };
//% endif
        for (uint j0 = 0u; j0 < min(${ n }u, end - t0); j0 += ${ chunk_v }u) {
            ${ stage(v) | indent(12) }
            barrier();
//% if causal or window
            if (ragged) {
                ${ accumulate("if (p[i][c] != 0.0) ") | indent(16) }
            } else {
                ${ accumulate("") | indent(16) }
            }
//% else
            ${ accumulate("") | indent(12) }
//% endif
            barrier();
        }
    }
    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) partials[(row0 + i) * ${ columns }u + column] = sums[i];
    barrier();
    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
        sums[i] = 0.0;
        [[unroll]] for (uint x = 0u; x < ${ columns }u; ++x) sums[i] += partials[(row0 + i) * ${ columns }u + x];
    }
//% if splits > 1
    if (parts > 1u) {
        const uint all = (g * ${ tiles }u + tile) * ${ splits }u;
        [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
            const uint to = ((all + gl_WorkGroupID.z) * ${ m }u + row0 + i) * ${ found_stride }u;
            [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) [[unroll]] for (uint c = 0u; c < 4u; ++c)
                found[to + (x * 4u + c) * ${ columns }u + column] = acc[i * ${ values }u + x][c];
            if (column == 0u) {
                found[to + ${ found_stride - 2 }u] = tops[i];
                found[to + ${ found_stride - 1 }u] = sums[i];
            }
        }
        ${ elect | indent(8) }
        [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
            float top = hidden, sum = 0.0;
            [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) acc[i * ${ values }u + x] = vec4(0.0);
            for (uint n = 0u; n < parts; ++n) {
                const uint at = ((all + n) * ${ m }u + row0 + i) * ${ found_stride }u;
                const float score = found[at + ${ found_stride - 2 }u], now = max_of(top, score);
                const float rescale = top == hidden ? 0.0 : ${ exp_top }, weight = score == hidden ? 0.0 : ${ exp_score };
                sum = fma(sum, rescale, found[at + ${ found_stride - 1 }u] * weight);
                [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) {
                    vec4 v;
                    [[unroll]] for (uint c = 0u; c < 4u; ++c) v[c] = found[at + (x * 4u + c) * ${ columns }u + column];
                    acc[i * ${ values }u + x] = fma(acc[i * ${ values }u + x], vec4(rescale), v * weight);
                }
                top = now;
            }
            sums[i] = sum;
//% if sink
            tops[i] = top;
//% endif
        }
    }
//% endif
    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) {
        const uint r = first_row + row0 + i, s = r / ${ group }u, h = g * ${ group }u + r % ${ group }u;
        if (r > last_row) continue;
//% if sink
        float fade = 1.0;
        if (sums[i] != 0.0) {
            const float now = tops[i];
            ${ sink.lines | indent(12) }
            const float over = ${ sink.over };
            fade = ${ sink.fade };
            sums[i] = fma(sums[i] * fade, fade, ${ sink.weight });
        }
//% endif
        [[unroll]] for (uint x = 0u; x < ${ values }u; ++x) [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            const uint e = (x * ${ columns }u + column) * 4u + c;
            if (e >= ${ e }u) continue;
            // The largest weight is 1, so a sum of 0 is that of a query that sees no key.
            const float result = sums[i] == 0.0 ? 0.0 : acc[i * ${ values }u + x][c]${ " * fade * fade" if sink } / sums[i];
            ${ store | indent(12) }
        }
    }
}
