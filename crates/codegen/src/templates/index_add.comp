${ head }
// The sums of the tile, in rows of ${ columns }.
shared ${ type } sums[${ rows * columns }];
// Positions of the indices that name a row of the tile, in order. Loading the terms replaces them by that row.
shared uint list[${ step }];
// Terms of adjacent entries of the list.
shared ${ type } terms[${ loads * workgroup }];
// Entries from each ${ "subgroup" if by_subgroup else "invocation" }, double-buffered: each step needs one barrier.
shared uint counts[2][${ slots }];
// ${ comment }
void main() {
    const uint lane = gl_LocalInvocationIndex;
    //% if by_subgroup
    const uint part = gl_SubgroupID, own = gl_SubgroupInvocationID;
    //% else
    const uint part = lane, own = 0u;
    //% endif
    // An invocation adds to one column, and to every row of its team.
    const uint c = lane % ${ columns }u, team = lane / ${ columns }u;
    ${ prelude | indent(4) }
    for (uint o = gl_WorkGroupID.z; o < ${ outer }; o += gl_NumWorkGroups.z)
    for (uint row0 = gl_WorkGroupID.y * ${ rows }u; row0 < ${ all_rows }; row0 += gl_NumWorkGroups.y * ${ rows }u)
    for (uint column0 = gl_WorkGroupID.x * ${ columns }u; column0 < ${ inner }; column0 += gl_NumWorkGroups.x * ${ columns }u) {
        const uint size = min(${ all_rows } - row0, ${ rows }u);
        // Past the last column, the last again: loads need no branch.
        const uint column = min(column0 + c, ${ inner } - 1u);
        ${ tile_lines | indent(8) }
        for (uint first = team; first < size; first += ${ teams * at_once }u) {
            ${ type } x[${ at_once }];
            [[unroll]] for (uint k = 0u; k < ${ at_once }u; ++k) {
                const uint row = min(row0 + first + k * ${ teams }u, ${ all_rows } - 1u);
                ${ dst_lines | indent(16) }
                x[k] = ${ dst };
            }
            [[unroll]] for (uint k = 0u; k < ${ at_once }u; ++k) {
                const uint r = first + k * ${ teams }u;
                if (r < size) sums[r * ${ columns }u + c] = x[k];
            }
        }
        // The row whose sum is in a register.
        uint current = ~0u;
        ${ type } total = ${ type }(0);
        uint listed = 0u, now = 0u;
        for (uint start = 0u;; start += ${ step }u) {
            const bool ends = start >= ${ count };
            // Subgroups read adjacent parts. Their lanes read adjacent indices.
            const uint read = start + part * ${ indices * lanes }u + own;
            uint rows[${ indices }];
            [[unroll]] for (uint k = 0u; k < ${ indices }u; ++k) rows[k] = ~0u;
            if (!ends) {
                [[unroll]] for (uint k = 0u; k < ${ indices }u; ++k) {
                    const uint wanted = read + k * ${ lanes }u, i = min(wanted, ${ count } - 1u);
                    ${ index_lines | indent(20) }
                    // Rows before the tile wrap to large ones.
                    rows[k] = wanted == i ? ${ index } - row0 : ~0u;
                }
            }
            // Four counts of 8 bits a word.
            uint marks[${ words }], before[${ words }], counted[${ words }], entries = 0u;
            [[unroll]] for (uint w = 0u; w < ${ words }u; ++w) {
                marks[w] = 0u;
                [[unroll]] for (uint k = 0u; k < 4u; ++k) marks[w] |= rows[w * 4u + k] < size ? 1u << k * 8u : 0u;
                before[w] = 0u;
                //% if by_subgroup
                counted[w] = subgroupAdd(marks[w]);
                if (counted[w] != 0u) before[w] = subgroupExclusiveAdd(marks[w]);
                //% else
                counted[w] = marks[w];
                //% endif
                [[unroll]] for (uint k = 0u; k < 4u; ++k) entries += counted[w] >> k * 8u & 255u;
            }
            if (own == 0u) counts[now][part] = entries;
            barrier();
            uint place = listed, found = 0u;
            for (uint s = 0u; s < ${ slots }u; ++s) {
                const uint n = counts[now][s];
                if (s < part) place += n;
                found += n;
            }
            now ^= 1u;
            if (ends || listed + found > ${ step }u) {
                // Terms are loaded one step before they are added.
                const uint steps = (listed + ${ entries - 1 }u) / ${ entries }u;
                for (uint step = 0u; listed > 0u && step <= steps; ++step) {
                    const uint first = step * ${ entries }u;
                    ${ type } x[${ loads }];
                    uint named[${ loads }];
                    if (step < steps) {
                        [[unroll]] for (uint k = 0u; k < ${ loads }u; ++k) {
                            // Past the last entry, the last again.
                            const uint i = list[min(first + k * ${ teams }u + team, listed - 1u)];
                            ${ term_lines | indent(28) }
                            x[k] = ${ term };
                            ${ index_lines | indent(28) }
                            named[k] = ${ index } - row0;
                        }
                    }
                    // Teams beyond the last row have nothing to add.
                    if (step > 0u && team < size) {
                        const uint low = first - ${ entries }u, n = min(listed - low, ${ entries }u);
                        for (uint e = 0u; e < n; e += 4u) {
                            uint r[4];
                            ${ type } y[4];
                            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                                const uint t = min(e + k, n - 1u);
                                r[k] = list[low + t];
                                y[k] = terms[t * ${ columns }u + c];
                            }
                            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                                if (e + k < n && r[k] % ${ teams }u == team) {
                                    if (r[k] != current) {
                                        if (current != ~0u) sums[current * ${ columns }u + c] = total;
                                        current = r[k];
                                        total = sums[current * ${ columns }u + c];
                                    }
                                    total = total + y[k];
                                }
                            }
                        }
                    }
                    barrier();
                    if (step < steps) {
                        [[unroll]] for (uint k = 0u; k < ${ loads }u; ++k) {
                            const uint entry = first + k * ${ teams }u + team;
                            terms[k * ${ workgroup }u + lane] = x[k];
                            if (c == 0u && entry < listed) list[entry] = named[k];
                        }
                    }
                    barrier();
                }
                place -= listed;
                listed = 0u;
            }
            if (ends) break;
            [[unroll]] for (uint k = 0u; k < ${ indices }u; ++k) {
                const uint shift = k % 4u * 8u, wanted = read + k * ${ lanes }u;
                if (rows[k] < size) list[place + (before[k / 4u] >> shift & 255u)] = wanted;
                place += counted[k / 4u] >> shift & 255u;
            }
            listed += found;
        }
        if (current != ~0u) sums[current * ${ columns }u + c] = total;
        barrier();
        for (uint k = lane; k < size * ${ side }u; k += ${ workgroup }u) {
            const uint r = k / ${ side }u, row = row0 + r, g = column0 / ${ size }u + k % ${ side }u;
            const uint from = r * ${ columns }u + k % ${ side }u * ${ size }u;
            if (g < ${ groups }) {
                ${ store | indent(16) }
            }
        }
        barrier();
    }
}
