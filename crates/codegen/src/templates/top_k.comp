${ head }
${ partials }
// How many candidates the tile holds: the first ${ count } found so far, sorted, and what may belong to them.
shared uint found;
//% macro offer(from, to, index)
for (uint start = ${ from }; start < ${ to }; start += ${ block }u) {
    ${ key } x[${ loads }];
    uint at[${ loads }];
    [[unroll]] for (uint e = 0u; e < ${ loads }u; ++e) {
        const uint c = start + e * ${ workgroup }u + lane;
        x[e] = ${ last };
        at[e] = c < ${ to } ? ${ index } : 0xffffffffu;
        if (at[e] != 0xffffffffu) {
            const uint i = at[e];
            ${ load | indent(12) }
            x[e] = ${ x };
        }
    }
    // A later element that equals the last selected one comes after it: positions grow.
    [[unroll]] for (uint e = 0u; e < ${ loads }u; ++e) {
        if (at[e] != 0xffffffffu && (!full || x[e] < limit)) {
            const uint s = slot(atomicAdd(found, 1u));
            keys[s] = x[e];
            places[s] = at[e];
        }
    }
    barrier();
    const uint candidates = found;
    if (!full || candidates > ${ tile - block }u || start + ${ block }u >= ${ to }) {
        ${ key } own[${ elements }];
        uint own_at[${ elements }];
        [[unroll]] for (uint e = 0u; e < ${ elements }u; ++e) {
            const uint i = ${ elements }u * lane + e;
            own[e] = i < candidates ? keys[slot(i)] : ${ last };
            own_at[e] = i < candidates ? places[slot(i)] : 0xffffffffu;
        }
        uint span = ${ elements }u;
        while (span < candidates) span *= 2u;
        sort_tile(span, own, own_at);
        limit = keys[slot(${ count - 1 }u)];
        full = candidates >= ${ count }u;
        barrier();
        if (lane == 0u) found = min(candidates, ${ count }u);
    }
    barrier();
}
//% endmacro
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    ${ prelude | indent(4) }
    for (uint row = gl_WorkGroupID.y; row < ${ rows }; row += gl_NumWorkGroups.y) {
        ${ key } limit = ${ last };
        bool full = false;
        if (lane == 0u) found = 0u;
        barrier();
//% if parts > 1
        // Whole blocks, so that each part is a range of positions.
        const uint part = gl_WorkGroupID.x, length = (${ len } / ${ parts }u / ${ block }u + 1u) * ${ block }u;
        const uint end = min(${ len }, (part + 1u) * length);
        ${ offer("part * length", "end", "c") | indent(8) }
        const uint before_row = row * ${ parts * count }u;
        for (uint j = lane; j < ${ count }u; j += ${ workgroup }u) {
            parts[before_row + part * ${ count }u + j] = j < found ? places[slot(j)] : 0xffffffffu;
        }
        ${ elect | indent(8) }
        full = false;
        if (lane == 0u) found = 0u;
        barrier();
        // The selections of all parts, in the order of the parts.
        ${ offer("0u", parts * count ~ "u", "parts[before_row + c]") | indent(8) }
//% else
        ${ offer("0u", len, "c") | indent(8) }
//% endif
        for (uint place = lane; place < ${ count }u; place += ${ workgroup }u) {
            const uint i = places[slot(place)];
            ${ store | indent(12) }
        }
        barrier();
    }
}
