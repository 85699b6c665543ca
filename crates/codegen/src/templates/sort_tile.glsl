// The tile: keys and positions, with one unused slot after each ${ elements } against bank conflicts.
shared ${ key } keys[${ slots }];
shared uint places[${ slots }];
uint slot(uint i) { return i + i / ${ elements }u; }
// Whether element (a, p) comes before element (b, q): equal elements are ordered by position.
bool comes_before(${ key } a, uint p, ${ key } b, uint q) { return a < b || (a == b && p < q); }
void put(uint first, ${ key } x[${ elements }], uint at[${ elements }]) {
    [[unroll]] for (uint e = 0u; e < ${ elements }u; ++e) {
        keys[slot(first + e)] = x[e];
        places[slot(first + e)] = at[e];
    }
}
// Elements [d, d + ${ elements }) of the merge of two adjacent sorted runs, of m elements from `first` on and of n after them. The
// first d elements of the merge are `low` elements of the one run and d - low of the other: a binary search finds
// `low` (merge path: Odeh et al., 2012).
void merge(uint first, uint m, uint n, uint d, out ${ key } x[${ elements }], out uint at[${ elements }]) {
    uint low = d > n ? d - n : 0u, high = min(d, m);
    while (low < high) {
        const uint middle = (low + high) >> 1, a = slot(first + middle), b = slot(first + m + d - 1u - middle);
        if (comes_before(keys[a], places[a], keys[b], places[b])) low = middle + 1u;
        else high = middle;
    }
    uint i = low, j = d - low;
    [[unroll]] for (uint e = 0u; e < ${ elements }u; ++e) {
        x[e] = ${ last };
        at[e] = 0xffffffffu;
        if (d + e < m + n) {
            const uint a = slot(first + min(i, m - 1u)), b = slot(first + m + min(j, n - 1u));
            const bool left = j >= n || (i < m && comes_before(keys[a], places[a], keys[b], places[b]));
            x[e] = keys[left ? a : b];
            at[e] = places[left ? a : b];
            if (left) ++i;
            else ++j;
        }
    }
}
//% if sorts
// Sorts segments of `span` elements of the tile, a power of two and at least ${ elements }. Each invocation brings ${ elements } adjacent elements
// of the tile; afterwards the tile is in shared memory.
void sort_tile(uint span, ${ key } x[${ elements }], uint at[${ elements }]) {
    const uint first = gl_LocalInvocationIndex * ${ elements }u;
    [[unroll]] for (uint round = 0u; round < ${ elements }u; ++round) {
        [[unroll]] for (uint e = round & 1u; e + 1u < ${ elements }u; e += 2u) {
            if (comes_before(x[e + 1u], at[e + 1u], x[e], at[e])) {
                const ${ key } key = x[e];
                const uint place = at[e];
                x[e] = x[e + 1u];
                at[e] = at[e + 1u];
                x[e + 1u] = key;
                at[e + 1u] = place;
            }
        }
    }
    put(first, x, at);
    barrier();
    for (uint run = ${ elements }u; run < span; run *= 2u) {
        const uint pair = first & ~(2u * run - 1u);
        merge(pair, run, run, first - pair, x, at);
        barrier();
        put(first, x, at);
        barrier();
    }
}
//% endif
