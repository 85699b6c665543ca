#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
//% if parts > 1
// Results of the workgroup's columns: [subgroup][anchor][row][column].
//% else
// Results of the workgroup's columns: [anchor][row][column].
//% endif
shared ${ type } tile[${ tile_floats * parts }];
//% for floats in rounded
//% if loop.first
// Results that are rounded once their block is whole: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
void main() {
    const uint lane = gl_LocalInvocationIndex;
//% if folded
    const uint batch = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (batch >= ${ batches }) return;
//% else
    const uint batch = gl_WorkGroupID.y;
//% endif
    uint group = gl_WorkGroupID.x;
    ${ prelude | indent(4) }
//% for s in segments
    if (group < ${ s.groups }) {
        const uint column0 = group * ${ s.tile }u;
        ${ s.prelude | indent(8) }
        for (uint c = 0u; c < ${ s.tile }u; c += ${ s.columns }u) {
            ${ type } acc[${ s.accs }];
            [[unroll]] for (uint i = 0u; i < ${ s.accs }u; ++i) acc[i] = ${ zero };
            for (uint k0 = lane * ${ step }u; k0 < ${ k }; k0 += ${ step * workgroup }u) {
                ${ s.k_lines | indent(16) }
                ${ type } x[${ m * step }];
                [[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
                    ${ s.m_lines | indent(20) }
//% if s.group_lines
                    [[unroll]] for (uint q = 0u; q < ${ step // 4 }u; ++q) {
                        const uint g = k0 / 4u + q;
                        ${ s.group_lines | indent(24) }
                        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                            ${ s.x_lines | indent(28) }
                            x[m * ${ step }u + q * 4u + j] = ${ s.x };
                        }
                    }
//% else
                    [[unroll]] for (uint j = 0u; j < ${ step }u; ++j) {
                        const uint k = k0 + j;
                        ${ s.x_lines | indent(24) }
                        x[m * ${ step }u + j] = ${ s.x };
                    }
//% endif
                }
                [[unroll]] for (uint r = 0u; r < ${ s.columns }u; ++r) {
                    const uint n = min(column0 + c + r, ${ s.last });
                    ${ type } w[${ step }];
//% for a in s.anchors
                    // ${ a.comment }
                    ${ a.load | indent(20) }
                    [[unroll]] for (uint m = 0u; m < ${ m }u; ++m)
                        [[unroll]] for (uint j = 0u; j < ${ step }u; ++j)
                            ${ a.acc } = ${ a.step };
//% endfor
                }
            }
            [[unroll]] for (uint i = 0u; i < ${ s.accs }u; ++i) {
//% if parts > 1
                float sum = acc[i];
                [[unroll]] for (uint mask = 1u; mask < ${ size }u; mask *= 2u) sum += subgroupShuffleXor(sum, mask);
                if (gl_SubgroupInvocationID == 0u) tile[gl_SubgroupID * ${ tile_floats }u + i / ${ s.columns }u * ${ s.tile }u + c + i % ${ s.columns }u] = sum;
//% else
                ${ type } total = ${ sum }(acc[i]);
                if (lane == 0u) tile[i / ${ s.columns }u * ${ s.tile }u + c + i % ${ s.columns }u] = total;
//% endif
            }
        }
        ${ s.end | indent(8) }
        return;
    }
    group -= ${ s.groups };
//% endfor
}
