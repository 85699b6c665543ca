#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
shared float query[${ d }];
shared float weight[${ workgroup }];
// One head and query a workgroup; keys in steps of one an invocation, with the softmax kept online:
// a new maximum rescales what was summed before (Milakov and Gimelshein, arXiv 1805.02867).
void main() {
    const uint lane = gl_LocalInvocationIndex, s = gl_WorkGroupID.x, h = gl_WorkGroupID.y;
    const uint g = h / ${ group }u;
    ${ prelude | indent(4) }
    const uint keys = ${ t };
    for (uint d = lane; d < ${ d }u; d += ${ workgroup }u) {
        ${ q_lines | indent(8) }
        query[d] = ${ q } * ${ scale };
    }
//% if causal
    // Query i sees keys up to i + T - S, which is below 0 where queries outnumber keys.
    const uint past = s + 1u + keys;
    const uint visible = past > ${ s_extent } ? min(keys, past - ${ s_extent }) : 0u;
//% else
    const uint visible = keys;
//% endif
    float top = uintBitsToFloat(0xff800000u), sum = 0.0;
    float acc[${ slots }];
    [[unroll]] for (uint i = 0u; i < ${ slots }u; ++i) acc[i] = 0.0;
    barrier();
    for (uint t0 = 0u; t0 < visible; t0 += ${ workgroup }u) {
        const uint t = t0 + lane;
        float score = uintBitsToFloat(0xff800000u);
        if (t < visible) {
            score = 0.0;
            ${ k_prelude | indent(12) }
            for (uint d = 0u; d < ${ d }u; ++d) {
                ${ k_lines | indent(16) }
                score = fma(query[d], ${ kv }, score);
            }
        }
        const float now = max(top, workgroup_max_float(score));
        const float p = t < visible ? exp(score - now) : 0.0;
        const float rescale = exp(top - now);
        sum = sum * rescale + workgroup_sum_float(p);
        weight[lane] = p;
        barrier();
        const uint count = min(${ workgroup }u, visible - t0);
        [[unroll]] for (uint i = 0u; i < ${ slots }u; ++i) {
            const uint e = lane + i * ${ workgroup }u;
            if (e < ${ e }u) {
                float a = acc[i] * rescale;
                for (uint j = 0u; j < count; ++j) {
                    const uint t = t0 + j;
                    ${ v_lines | indent(20) }
                    a = fma(weight[j], ${ v }, a);
                }
                acc[i] = a;
            }
        }
        top = now;
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < ${ slots }u; ++i) {
        const uint e = lane + i * ${ workgroup }u;
        if (e < ${ e }u) {
            const float result = visible == 0u ? 0.0 : acc[i] / sum;
            ${ store | indent(12) }
        }
    }
}
