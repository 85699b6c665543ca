#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// The activations, rounded to blocks of 32 bytes: [row][block]; the lower halves of all blocks, then the upper.
shared ivec4 x_bytes[${ 2 * m * blocks }];
// The scale of a block, and it times the sums of the block's halves.
shared float x_scale[${ m * blocks }];
shared vec2 x_sum[${ m * blocks }];
// Results of the workgroup's columns: [anchor][row][column].
shared float tile[${ tile_floats }];
//% for floats in rounded
//% if loop.first
// Results that are rounded once their block is whole: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
void main() {
    const uint lane = gl_LocalInvocationIndex;
    uint group = gl_WorkGroupID.x;
    ${ prelude | indent(4) }
    // Eight invocations round a block. Counted through subgroups, so that the eight are in one.
    for (uint quad = gl_SubgroupID * ${ size } + gl_SubgroupInvocationID; quad < ${ m * blocks * 8 }u; quad += ${ workgroup }u) {
        const uint m = quad / ${ blocks * 8 }u, block = quad / 8u, part = quad % 8u;
        ${ m_lines | indent(8) }
        vec4 x;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            const uint k = quad % ${ blocks * 8 }u * 4u + j;
            ${ x_lines | indent(12) }
            x[j] = ${ x };
        }
        float most = max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w)));
        most = max(most, subgroupShuffleXor(most, 1u));
        most = max(most, subgroupShuffleXor(most, 2u));
        most = max(most, subgroupShuffleXor(most, 4u));
        const float scale = most / 127.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
        const vec4 y = x * inverse;
        const ivec4 q = ivec4(to_int(round_of(y.x)), to_int(round_of(y.y)), to_int(round_of(y.z)), to_int(round_of(y.w)));
        int sum = q.x + q.y + q.z + q.w;
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        const uint half_at = (part < 4u ? 0u : ${ m * blocks }u) + block;
        x_bytes[half_at][part & 3u] = (q.x & 255) | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24;
        const float d = round_f16(scale);
        if (part == 0u) x_scale[block] = d;
        if ((part & 3u) == 0u) x_sum[block][part / 4u] = d * float(sum);
    }
    barrier();
//% for s in segments
    if (group < ${ s.groups }) {
        const uint column0 = group * ${ s.tile }u;
        ${ s.prelude | indent(8) }
        // Each subgroup takes ${ s.columns } of the tile's columns at a time.
        for (uint c = gl_SubgroupID * ${ s.columns }u; c < ${ s.tile }u; c += ${ subgroups } * ${ s.columns }u) {
            float acc[${ s.accs }];
            [[unroll]] for (uint i = 0u; i < ${ s.accs }u; ++i) acc[i] = 0.0;
            for (uint step = 0u; step < ${ steps }; ++step) {
                const uint block = step * ${ size } + gl_SubgroupInvocationID, k0 = block * 32u;
//% if not whole
                if (block >= ${ blocks }u) break;
//% endif
                [[unroll]] for (uint r = 0u; r < ${ s.columns }u; ++r) {
                    const uint n = min(column0 + c + r, ${ s.last });
                    int q[8];
//% for a in s.anchors
                    // ${ a.comment }
                    ${ a.load | indent(20) }
                    [[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
                        const uint at = m * ${ blocks }u + block;
                        const ivec4 lo = x_bytes[at], hi = x_bytes[at + ${ m * blocks }u];
                        const int low = dotPacked4x8EXT(q[0], lo.x) + dotPacked4x8EXT(q[1], lo.y)
                            + dotPacked4x8EXT(q[2], lo.z) + dotPacked4x8EXT(q[3], lo.w);
                        const int high = dotPacked4x8EXT(q[4], hi.x) + dotPacked4x8EXT(q[5], hi.y)
                            + dotPacked4x8EXT(q[6], hi.z) + dotPacked4x8EXT(q[7], hi.w);
//% if a.halves
                        ${ a.acc } += x_scale[at] * dot(${ a.weight }.xy, vec2(low, high)) + dot(${ a.weight }.zw, x_sum[at]);
//% elif a.offset
                        ${ a.acc } += x_scale[at] * ${ a.weight }.x * float(low + high) + ${ a.weight }.y * (x_sum[at].x + x_sum[at].y);
//% else
                        ${ a.acc } += x_scale[at] * ${ a.weight } * float(low + high);
//% endif
                    }
//% endfor
                }
            }
            [[unroll]] for (uint i = 0u; i < ${ s.accs }u; ++i) {
                const float total = subgroupAdd(acc[i]);
                if (gl_SubgroupInvocationID == 0u) tile[i / ${ s.columns }u * ${ s.tile }u + c + i % ${ s.columns }u] = total;
            }
        }
        barrier();
        for (uint t = lane; t < ${ m * s.tile }u; t += ${ workgroup }u) {
            const uint m = t / ${ s.tile }u, n = column0 + t % ${ s.tile }u;
            if (n < ${ s.n }) {
                ${ s.store | indent(16) }
            }
        }
//% if s.blocks
        barrier();
        for (uint t = lane * ${ block }u; t < ${ m * s.tile }u; t += ${ workgroup * block }u) {
            const uint m = t / ${ s.tile }u, n0 = column0 + t % ${ s.tile }u;
            if (n0 < ${ s.n }) {
                float x[${ block }];
//% for r in s.blocks
                {
                    [[unroll]] for (uint j = 0u; j < ${ block }u; ++j) x[j] = rounded${ loop.index0 }[t + j];
                    uint words[${ r.words }];
                    ${ r.function }(x, words);
                    ${ r.store | indent(20) }
                }
//% endfor
            }
        }
//% endif
        return;
    }
    group -= ${ s.groups };
//% endfor
}
