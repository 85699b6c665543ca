${ head }
shared ${ type } query[${ d }];
shared ${ type } weight[${ workgroup }];
// One head and query a workgroup; keys in steps of one an invocation, with the softmax kept online:
// a new maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867).
void main() {
    const uint lane = gl_LocalInvocationIndex, s = gl_WorkGroupID.x, h = gl_WorkGroupID.y;
    const uint g = h / ${ group }u;
    ${ prelude | indent(4) }
    ${ prologue | indent(4) }
    barrier();
    for (uint t0 = first; t0 < end; t0 += ${ workgroup }u) {
        const uint t = t0 + lane;
        ${ type } score = hidden;
        if (t < end) {
            score = ${ zero };
            ${ t_lines | indent(12) }
//% if step > 1
            for (uint d = 0u; d < ${ d }u; d += ${ step }u) {
                float w[${ step }];
                ${ k_lines | indent(16) }
                [[unroll]] for (uint c = 0u; c < ${ step }u; ++c) score = fma(query[d + c], w[c], score);
            }
//% else
            for (uint d = 0u; d < ${ d }u; ++d) {
                ${ k_lines | indent(16) }
                score = fma(query[d], ${ k }, score);
            }
//% endif
//% if cap
            score = ${ cap } * ${ capped };
//% endif
//% if bias
            score += ${ bias };
//% endif
        }
        const ${ type } now = max_of(top, ${ max }(score));
        // Where all scores so far are hidden, so is their maximum, and infinity less infinity is no number.
        const ${ type } p = score == hidden ? ${ zero } : ${ exp_score };
        const ${ type } rescale = top == hidden ? ${ zero } : ${ exp_top };
        sum = sum * rescale + ${ total }(p);
        weight[lane] = p;
        barrier();
        const uint count = min(${ workgroup }u, end - t0);
        [[unroll]] for (uint i = 0u; i < ${ slots }u; ++i) {
            const uint e = lane + i * ${ workgroup }u;
            if (e < ${ e }u) {
                ${ type } a = acc[i] * rescale;
                for (uint j0 = 0u; j0 < count; j0 += ${ at_once }u) {
                    [[unroll]] for (uint c = 0u; c < ${ at_once }u; ++c) {
                        const uint j = j0 + c, t = t0 + j;
                        if (j < count) {
                            ${ v_lines | indent(28) }
                            a = fma(weight[j], ${ v }, a);
                        }
                    }
                }
                acc[i] = a;
            }
        }
        top = now;
        barrier();
    }
//% if sink
    ${ type } fade = ${ type }(1.0);
    if (sum != ${ zero }) {
        const ${ type } now = top;
        ${ sink.lines | indent(8) }
        const ${ type } over = ${ sink.over };
        fade = ${ sink.fade };
        sum = sum * fade * fade + ${ sink.weight };
    }
//% endif
    [[unroll]] for (uint i = 0u; i < ${ slots }u; ++i) {
        const uint e = lane + i * ${ workgroup }u;
        if (e < ${ e }u) {
            // The largest weight is 1, so a sum of 0 is that of a query that sees no key.
            const ${ type } result = sum == ${ zero } ? ${ zero } : acc[i]${ " * fade * fade" if sink } / sum;
            ${ store | indent(12) }
        }
    }
}
