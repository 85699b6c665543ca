#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// The activations: [row][eight elements]; the lower halves of all eights, then the upper.
shared vec4 xs[${ 2 * m * items }];
//% if parts > 1
// Results of the workgroup's columns: [part of the inner extent][anchor][row][column].
//% else
// Results of the workgroup's columns: [anchor][row][column].
//% endif
shared float tile[${ tile_floats }];
//% for floats in rounded
//% if loop.first
// Results that are rounded once their block is whole: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
void main() {
    const uint lane = gl_LocalInvocationIndex, group = gl_WorkGroupID.x;
    ${ prelude | indent(4) }
    for (uint quad = lane; quad < ${ 2 * m * items }u; quad += ${ workgroup }u) {
        const uint m = quad / ${ 2 * items }u;
        ${ m_lines | indent(8) }
        vec4 x;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            const uint k = quad % ${ 2 * items }u * 4u + j;
            ${ x_lines | indent(12) }
            x[j] = ${ x };
        }
        xs[quad % 2u * ${ m * items }u + quad / 2u] = x;
    }
    barrier();
//% for s in segments
    if (${ s.here }) {
        const uint column0 = ${ s.column0 };
        ${ s.prelude | indent(8) }
        float acc[${ s.accs }];
        [[unroll]] for (uint j = 0u; j < ${ s.accs }u; ++j) acc[j] = 0.0;
        // ${ s.comment }
        const uint total = ${ s.total };
        for (uint i0 = 0u; i0 < total; i0 += ${ s.depth }u) {
            [[unroll]] for (uint ahead = 0u; ahead < ${ s.depth }u; ++ahead) {
                const uint i = i0 + ahead;
                const uint item = ${ s.item }, c = ${ s.column };
                const uint n = min(column0 + c, ${ s.last }), k0 = ${ s.k0 };
                float w[8];
//% for a in s.anchors
                // ${ a.comment }
                ${ a.load | indent(16) }
//% if not whole
                if (item < ${ items }u)
//% endif
                [[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
                    const vec4 lo = xs[m * ${ items }u + item], hi = xs[(m + ${ m }u) * ${ items }u + item];
                    ${ a.acc } += dot(vec4(w[0], w[1], w[2], w[3]), lo) + dot(vec4(w[4], w[5], w[6], w[7]), hi);
                }
//% endfor
                ${ s.ends }{
                    [[unroll]] for (uint j = 0u; j < ${ s.accs }u; ++j) {
                        const float sum = subgroupAdd(acc[j]);
                        if (gl_SubgroupInvocationID == 0u) tile[${ s.part_at }j * ${ s.tile }u + c] = sum;
                        acc[j] = 0.0;
                    }
                }
            }
        }
        ${ s.end | indent(8) }
//% if not loop.last
        return;
//% endif
    }
//% endfor
}
