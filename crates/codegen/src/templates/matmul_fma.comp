#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// A slice of the left operand, ${ bk } x ${ bm } rows, and one of the right, ${ bk } x ${ bn } columns, so that four rows or columns are read at
// a time. The left's lie four elements further apart: neighbours along k that are stored together are in other banks.
shared ${ vector } slices[${ vectors }];
//% if strips
// Later a strip of the results: [row][column].
${ type } result(uint i) { return slices[i >> 2][i & 3u]; }
//% endif
void main() {
    const uint lane = gl_LocalInvocationIndex, batch = gl_WorkGroupID.z;
    const uint row0 = gl_WorkGroupID.${ "y" if turned else "x" } * ${ bm }u;
    uint group = gl_WorkGroupID.${ "x" if turned else "y" };
    // Blocks of ${ block } invocations, 8 of them along columns, read few different rows and columns together.
    const uint tx = lane / ${ block }u % ${ across // 8 }u * 8u + lane % 8u;
    const uint ty = lane / ${ block * across // 8 }u * ${ block // 8 }u + lane % ${ block }u / 8u;
    ${ prelude | indent(4) }
//% for s in segments
    if (group < ${ s.groups }) {
        const uint column0 = group * ${ s.bn }u;
        ${ s.prelude | indent(8) }
        ${ type } sums[${ tm * tn }];
        [[unroll]] for (uint i = 0u; i < ${ tm * tn }u; ++i) sums[i] = ${ zero };
        // The slice after the one that is multiplied waits in registers.
        ${ s.arrays | indent(8) }
        uint k0 = 0u;
//% if empty
        if (k0 < ${ k }) {
            ${ s.load | indent(12) }
        }
//% else
        ${ s.load | indent(8) }
//% endif
        for (uint done = 0u; done < ${ k }; done += ${ bk }u) {
            ${ s.put | indent(12) }
            barrier();
//% if last != "0u"
            // Behind the last slice the last again: what loads are for could not leave a branch, in front of the products.
            k0 = min(done + ${ bk }u, ${ last });
            ${ s.load | indent(12) }
//% endif
            for (uint kk = 0u; kk < ${ bk }u; ++kk) {
                ${ vector } x[${ tm // 4 }], w[${ tn // 4 }];
                [[unroll]] for (uint g = 0u; g < ${ tm // 4 }u; ++g) x[g] = slices[kk * ${ left_stride }u + g * ${ bm // tm }u + ty];
                [[unroll]] for (uint g = 0u; g < ${ tn // 4 }u; ++g) w[g] = slices[${ right0 }u + kk * ${ bn // 4 }u + g * ${ bn // tn }u + tx];
                [[unroll]] for (uint j = 0u; j < ${ tn }u; ++j)
                    [[unroll]] for (uint i = 0u; i < ${ tm }u; ++i) sums[i * ${ tn }u + j] = ${ step };
            }
            barrier();
        }
//% if s.strips
        [[unroll]] for (uint i = 0u; i < ${ tm }u; ++i) {
            [[unroll]] for (uint g = 0u; g < ${ tn // 4 }u; ++g) {
                const uint at = i * ${ tn }u + g * 4u;
                slices[ty * ${ bn // 4 }u + g * ${ bn // tn }u + tx] = ${ vector }(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
            }
            barrier();
            for (uint t = lane; t < ${ bm // tm * s.bn }u; t += ${ workgroup }u) {
                const uint r = t / ${ s.bn }u, m = row0 + i / 4u * ${ bm * 4 // tm }u + r * 4u + i % 4u, n = column0 + t % ${ s.bn }u;
                if (m < ${ m } && n < ${ s.n }) {
                    ${ s.store | indent(20) }
                }
            }
            barrier();
        }
//% else
        [[unroll]] for (uint i = 0u; i < ${ tm }u; ++i) {
            const uint m = row0 + i / 4u * ${ bm * 4 // tm }u + ty * 4u + i % 4u;
            if (m < ${ m }) {
                ${ s.row | indent(16) }
                [[unroll]] for (uint j = 0u; j < ${ s.own }u; ++j) {
                    const uint n = column0 + j / 4u * ${ bn * 4 // tn }u + tx * 4u + j % 4u;
                    if (n < ${ s.n }) {
                        ${ s.store | indent(24) }
                    }
                }
            }
        }
//% endif
        return;
    }
    group -= ${ s.groups };
//% endfor
}
