#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// The activations, rounded to blocks of 32 bytes: [row][block]; the lower halves of all blocks, then from ${ upper } on the upper.
shared ivec4 x_bytes[${ upper + m * blocks }];
// The scale of a block, and it times the sums of the block's halves.
shared float x_scale[${ m * blocks }];
shared vec2 x_sum[${ m * blocks }];
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
    // Each takes ${ elements } elements, ${ lanes } invocations a block. Counted through subgroups, so that these are in one.
    for (uint run = gl_SubgroupID * ${ size } + gl_SubgroupInvocationID; run < ${ m * blocks * lanes }u; run += ${ workgroup }u) {
        const uint m = run / ${ blocks * lanes }u, block = run / ${ lanes }u, word0 = run % ${ lanes }u * ${ words }u;
        ${ m_lines | indent(8) }
        const uint g = run % ${ blocks * lanes }u;
        float x[${ elements }], most = 0.0;
        ${ x_lines | indent(8) }
        [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) most = max(most, abs(x[j]));
//% for mask in masks
        most = max(most, subgroupShuffleXor(most, ${ mask }u));
//% endfor
        const float scale = most / 127.0, inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
        const uint half_at = (word0 < 4u ? 0u : ${ upper }u) + block;
        int sum = 0;
        [[unroll]] for (uint j = 0u; j < ${ words }u; ++j) {
            ivec4 q;
            [[unroll]] for (uint i = 0u; i < 4u; ++i) q[i] = byte_of(x[4u * j + i] * inverse);
            sum += q.x + q.y + q.z + q.w;
            x_bytes[half_at][(word0 + j) & 3u] = (q.x & 255) | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24;
        }
//% for mask in sum_masks
        sum += subgroupShuffleXor(sum, ${ mask }u);
//% endfor
        const float d = round_f16(scale);
        if (word0 == 0u) x_scale[block] = d;
        if ((word0 & 3u) == 0u) x_sum[block][word0 / 4u] = d * float(sum);
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
                const uint block = ${ s.block }, c = ${ s.column };
                const uint n = min(column0 + c, ${ s.last }), k0 = ${ s.k0 };
                int q[8];
//% for a in s.anchors
                // ${ a.comment }
                {
                    const uint slot = ahead${ s.slots }${ a.slot };
                    ${ a.unpack | indent(20) }
                    if (i + ${ s.depth }u < total) {
                        const uint i = i + ${ s.depth }u, block = ${ s.block }, c = ${ s.column };
                        const uint n = min(column0 + c, ${ s.last }), k0 = ${ s.k0 };
                        ${ a.fetch | indent(24) }next[slot]);
                    }
//% if not whole
                    if (block < ${ blocks }u)
//% endif
                    [[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
//% if a.pairs
                        const uint at = m * ${ blocks }u + (block & ~1u), part = block & 1u;
                        const ivec4 lo = x_bytes[part * ${ upper }u + at], hi = x_bytes[part * ${ upper }u + at + 1u];
//% else
                        const uint at = m * ${ blocks }u + block;
                        const ivec4 lo = x_bytes[at], hi = x_bytes[${ upper }u + at];
//% endif
                        const int low = dotPacked4x8EXT(q[0], lo.x) + dotPacked4x8EXT(q[1], lo.y)
                            + dotPacked4x8EXT(q[2], lo.z) + dotPacked4x8EXT(q[3], lo.w);
                        const int high = dotPacked4x8EXT(q[4], hi.x) + dotPacked4x8EXT(q[5], hi.y)
                            + dotPacked4x8EXT(q[6], hi.z) + dotPacked4x8EXT(q[7], hi.w);
//% if a.pairs
                        ${ a.acc } += x_scale[at] * w.x * float(low) + x_scale[at + 1u] * w.y * float(high)
                            + w.z * x_sum[at][part] + w.w * x_sum[at + 1u][part];
//% elif a.halves
                        ${ a.acc } += x_scale[at] * dot(w.xy, vec2(low, high)) + dot(w.zw, x_sum[at]);
//% elif a.offset
                        ${ a.acc } += x_scale[at] * w.x * float(low + high) + w.y * (x_sum[at].x + x_sum[at].y);
//% else
                        ${ a.acc } += x_scale[at] * w * float(low + high);
//% endif
                    }
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
