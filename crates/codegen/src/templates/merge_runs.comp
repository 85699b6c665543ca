${ head }
shared uint splits[2];
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    for (uint row = gl_WorkGroupID.y; row < ${ rows }; row += gl_NumWorkGroups.y) {
        for (uint start = gl_WorkGroupID.x * ${ tile }u; start < ${ len }; start += gl_NumWorkGroups.x * ${ tile }u) {
            const uint pair = start & ${ pair_mask };
            const uint m = min(${ len } - pair, ${ run }), n = min(${ len } - pair - m, ${ run });
            const uint first = start - pair, end = min(first + ${ tile }u, m + n);
            // Where the tile begins and ends in the first run. Each half of the workgroup searches one of them, with a
            // probe per invocation.
            const uint side = lane / ${ probes }u, d = side == 0u ? first : end;
            uint low = d > n ? d - n : 0u, high = min(d, m);
            for (uint round = 0u; round < ${ rounds }u; ++round) {
                if (lane % ${ probes }u == 0u) splits[side] = 0u;
                barrier();
                const uint step = (high - low) / ${ probes }u + 1u, probe = low + lane % ${ probes }u * step;
                if (probe < high) {
                    const uint i = pair + probe, j = pair + m + d - 1u - probe;
                    ${ probe_lines | indent(20) }
                    if (comes_before(${ a }, ${ a_place }, ${ b }, ${ b_place })) atomicMax(splits[side], lane % ${ probes }u + 1u);
                }
                barrier();
                // The probes that come before their partner are the first ones.
                const uint hits = splits[side];
                high = min(high, low + hits * step);
                low += hits > 0u ? (hits - 1u) * step + 1u : 0u;
                barrier();
            }
            if (lane % ${ probes }u == 0u) splits[side] = low;
            barrier();
            const uint count = end - first;
            // Of runs that are not sorted, the second search may end before the first.
            const uint left = min(max(splits[1], splits[0]) - splits[0], count);
            for (uint s = lane; s < count; s += ${ workgroup }u) {
                const uint k = pair + (s < left ? splits[0] + s : m + first - splits[0] + s - left);
                ${ load | indent(16) }
                keys[slot(s)] = ${ x };
                places[slot(s)] = ${ x_place };
            }
            barrier();
            ${ key } x[${ elements }];
            uint at[${ elements }];
            merge(0u, left, count - left, ${ elements }u * lane, x, at);
            barrier();
            put(${ elements }u * lane, x, at);
            barrier();
            for (uint s = lane; s < count; s += ${ workgroup }u) {
                const uint place = start + s, i = places[slot(s)];
                ${ store | indent(16) }
            }
            barrier();
        }
    }
}
