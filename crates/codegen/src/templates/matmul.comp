#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// Slices of the operands, and the results of the workgroup's tile: [anchor][row][column].
shared ${ type } left[${ bm * (bk + 1) }];
shared ${ type } right[${ right_floats }];
shared ${ type } tile[${ tile_floats }];
void main() {
    const uint lane = gl_LocalInvocationIndex, batch = gl_WorkGroupID.z;
    const uint row0 = gl_WorkGroupID.y * ${ bm }u;
    uint group = gl_WorkGroupID.x;
    ${ prelude | indent(4) }
//% for s in segments
    if (group < ${ s.groups }) {
        const uint column0 = group * ${ s.bn }u;
        ${ s.prelude | indent(8) }
        ${ type } acc[${ s.accs }];
        [[unroll]] for (uint i = 0u; i < ${ s.accs }u; ++i) acc[i] = ${ zero };
        for (uint k0 = 0u; k0 < ${ k }; k0 += ${ bk }u) {
            ${ s.k_lines | indent(12) }
            for (uint t = lane; t < ${ bm * bk }u; t += ${ workgroup }u) {
                const uint m = row0 + t / ${ bk }u, k = k0 + t % ${ bk }u;
                ${ type } x = ${ zero };
                if (m < ${ m } && k < ${ k }) {
                    ${ s.x_lines | indent(20) }
                    x = ${ s.x };
                }
                left[t / ${ bk }u * ${ bk + 1 }u + t % ${ bk }u] = x;
            }
//% for a in s.anchors
            // ${ a.comment }
            ${ a.load | indent(12) }
//% endfor
            barrier();
            for (uint kk = 0u; kk < ${ bk }u; ++kk) {
                ${ type } x[${ rows }];
                [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) x[i] = left[(lane / 8u * ${ rows }u + i) * ${ bk + 1 }u + kk];
                [[unroll]] for (uint c = 0u; c < ${ s.columns }u; ++c) {
                    ${ type } w = right[kk * ${ s.bn + 1 }u + (c / ${ s.bn // 8 }u) * ${ bk * (s.bn + 1) }u + c % ${ s.bn // 8 }u * 8u + lane % 8u];
                    [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i) acc[c * ${ rows }u + i] = ${ step };
                }
            }
            barrier();
        }
        [[unroll]] for (uint c = 0u; c < ${ s.columns }u; ++c)
            [[unroll]] for (uint i = 0u; i < ${ rows }u; ++i)
                tile[(c / ${ s.bn // 8 }u * ${ bm }u + lane / 8u * ${ rows }u + i) * ${ s.bn }u + c % ${ s.bn // 8 }u * 8u + lane % 8u] = acc[c * ${ rows }u + i];
        barrier();
        for (uint t = lane; t < ${ bm * s.bn }u; t += ${ workgroup }u) {
            const uint i = t / ${ s.bn }u, m = row0 + i, n = column0 + t % ${ s.bn }u;
            if (m < ${ m } && n < ${ s.n }) {
                ${ s.store | indent(16) }
            }
        }
        return;
    }
    group -= ${ s.groups };
//% endfor
}
