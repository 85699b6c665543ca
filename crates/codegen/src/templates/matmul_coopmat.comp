#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
uvec4 packed(float w[8]) {
    uvec4 p;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) p[i] = packFloat2x16(f16vec2(w[2u * i], w[2u * i + 1u]));
    return p;
}
${ functions }
// Slices of the operands in f16: ${ bm } rows of the left, then as many columns of the right, ${ bk } elements each, and
// eight more so that neighbouring rows lie in different banks. Later strips of the results.
shared uvec4 slices[${ words }];
//% if shared
// What each part of a tile found, and how many parts of it are done.
layout(set = 0, binding = ${ shared.partial }, std430) coherent buffer Partial { float partial[]; };
layout(set = 0, binding = ${ shared.done }, std430) coherent buffer Done { uint done[]; };
shared uint before;
//% endif
float result(uint i) { return uintBitsToFloat(slices[i >> 2][i & 3u]); }
void main() {
//% if shared
    // A tile is shared by ${ shared.parts } workgroups, each with a part of the inner extent.
    const uint lane = gl_LocalInvocationIndex, batch = 0u, share = gl_WorkGroupID.z;
    const uint first = share * ${ shared.each }u, behind = min(first + ${ shared.each }u, ${ k });
//% else
    const uint lane = gl_LocalInvocationIndex, batch = gl_WorkGroupID.z;
//% endif
    const uint row0 = gl_WorkGroupID.x * ${ bm }u;
    uint group = gl_WorkGroupID.y;
    // Four invocations load a row. Those that store together take rows four apart, which lie in different banks.
    const uint quad = lane / 4u, part = lane % 4u;
    const uint own = (quad & ~7u) | (quad & 1u) << 2 | (quad >> 1 & 3u);
    const uint left0 = gl_SubgroupID / 2u * ${ bm // 2 * stride }u;
    ${ prelude | indent(4) }
//% for s in segments
//% macro load(from, column0)
${ s.k_lines }
[[unroll]] for (uint t = 0u; t < ${ pieces }u; ++t) {
    const uint m = min(row0 + t * ${ pass }u + own, ${ m } - 1u), k = ${ from }part * 8u;
    ${ s.left | indent(4) }
}
//% for a in s.anchors
// ${ a.comment }
[[unroll]] for (uint t = 0u; t < ${ s.passes }u; ++t) {
//% if a.rows
    const uint n = min(${ column0 } + lane % ${ s.bn // 8 }u * 8u, ${ s.n } - 8u), k = ${ from }t * ${ workgroup * 8 // s.bn }u + lane / ${ s.bn // 8 }u;
//% else
    const uint n = min(${ column0 } + t * ${ pass }u + own, ${ s.n } - 1u), k = ${ from }part * 8u;
//% endif
    ${ a.load | indent(4) }
}
//% endfor
//% endmacro
//% macro tile()
        coopmat<float, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseAccumulator> sums[${ s.sums }];
        [[unroll]] for (uint i = 0u; i < ${ s.sums }u; ++i) sums[i] = coopmat<float, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseAccumulator>(0.0);
        // A slice is loaded while the one before it is multiplied. Unrolled, the loop would take more registers than there are.
        [[dont_unroll]] for (uint k0 = ${ "first" if shared else "0u" }; k0 < ${ "behind" if shared else k }; k0 += ${ bk }u) {
            [[unroll]] for (uint t = 0u; t < ${ pieces }u; ++t) slices[(t * ${ pass }u + own) * ${ stride }u + part] = left[t];
//% for a in s.anchors
            [[unroll]] for (uint t = 0u; t < ${ s.passes }u; ++t) {
//% if a.value != a.name + "[t]"
                const uint n = min(column0 + t * ${ pass }u + own, ${ s.n } - 1u), k = k0 + part * 8u;
                ${ a.lines | indent(16) }
//% endif
//% if a.rows
                slices[${ right0 + a.at }u + (t * ${ workgroup * 8 // s.bn }u + lane / ${ s.bn // 8 }u) * ${ s.bn // 8 + 1 }u + lane % ${ s.bn // 8 }u] = ${ a.value };
//% else
                slices[${ right0 + a.at }u + (t * ${ pass }u + own) * ${ stride }u + part] = ${ a.value };
//% endif
            }
//% endfor
            barrier();
//% if turns > 1
            const bool same = k0 + ${ bk }u < ${ k };
            const uint next = same ? k0 + ${ bk }u : 0u, next_column = same ? column0 : min(column0 + ${ s.bn }u, behind - ${ s.bn }u);
            ${ load("next + ", "next_column") | indent(12) }
//% else
            const uint next = ${ next };
            ${ load("next + ", "column0") | indent(12) }
//% endif
            [[unroll]] for (uint kk = 0u; kk < ${ bk // side }u; ++kk) {
                coopmat<float16_t, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseA> a[${ matrices }];
                coopmat<float16_t, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseB> b;
                [[unroll]] for (uint i = 0u; i < ${ matrices }u; ++i)
                    coopMatLoad(a[i], slices, left0 + i * ${ side * stride }u + kk * ${ side // 8 }u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint j = 0u; j < ${ s.wide }u; ++j) {
                    const uint column = (gl_SubgroupID % 2u * ${ s.wide }u + j) * ${ side }u;
//% for a in s.anchors
//% if a.rows
                    coopMatLoad(b, slices, ${ right0 + a.at }u + kk * ${ side * (s.bn // 8 + 1) }u + column / 8u, ${ s.bn // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
//% else
                    coopMatLoad(b, slices, ${ right0 + a.at }u + column * ${ stride }u + kk * ${ side // 8 }u, ${ stride }u, gl_CooperativeMatrixLayoutColumnMajor);
//% endif
                    [[unroll]] for (uint i = 0u; i < ${ matrices }u; ++i)
                        sums[${ a.sum }u + j * ${ matrices }u + i] = coopMatMulAdd(a[i], b, sums[${ a.sum }u + j * ${ matrices }u + i]);
//% endfor
                }
            }
            barrier();
        }
//% if shared
        // The last part that is done sums up what all of them found.
        const uint tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, partial0 = tile * ${ shared.parts * shared.floats }u + gl_SubgroupID * ${ s.sums * side * side }u;
        [[unroll]] for (uint i = 0u; i < ${ s.sums }u; ++i)
            coopMatStore(sums[i], partial, partial0 + share * ${ shared.floats }u + i * ${ side * side }u, ${ side }u, gl_CooperativeMatrixLayoutRowMajor);
        memoryBarrierBuffer();
        barrier();
        if (lane == 0u) before = atomicAdd(done[tile], 1u);
        barrier();
        if (before + 1u < ${ shared.parts }u) return;
        memoryBarrierBuffer();
        if (lane == 0u) done[tile] = 0u;
        [[unroll]] for (uint i = 0u; i < ${ s.sums }u; ++i) {
            coopMatLoad(sums[i], partial, partial0 + i * ${ side * side }u, ${ side }u, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint p = 1u; p < ${ shared.parts }u; ++p) {
                coopmat<float, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseAccumulator> other;
                coopMatLoad(other, partial, partial0 + p * ${ shared.floats }u + i * ${ side * side }u, ${ side }u, gl_CooperativeMatrixLayoutRowMajor);
                sums[i] += other;
            }
        }
//% endif
//% if s.narrow
        // A subgroup at a time takes ${ side } rows of its own results, as f16.
        const uint strip0 = gl_SubgroupID * ${ s.strip_words }u, half0 = row0 + gl_SubgroupID / 2u * ${ bm // 2 }u;
        [[unroll]] for (uint i = 0u; i < ${ matrices }u; ++i) {
            [[unroll]] for (uint j = 0u; j < ${ s.wide }u; ++j) {
                const coopmat<float16_t, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseAccumulator> narrow =
                    coopmat<float16_t, gl_ScopeSubgroup, ${ side }, ${ side }, gl_MatrixUseAccumulator>(sums[j * ${ matrices }u + i]);
                coopMatStore(narrow, slices, strip0 + j * ${ side // 8 }u, ${ s.strip }u, gl_CooperativeMatrixLayoutRowMajor);
            }
            subgroupBarrier();
            [[unroll]] for (uint q = 0u; q < ${ side * s.across // 8 // lanes }u; ++q) {
                const uint t = q * ${ lanes }u + gl_SubgroupInvocationID, r = t / ${ s.across // 8 }u, c = t % ${ s.across // 8 }u;
                const uint m = half0 + i * ${ side }u + r, g = (column0 + gl_SubgroupID % 2u * ${ s.across }u) / 8u + c;
                if (m < ${ m } && g < ${ s.columns }) {
                    const uvec4 found0 = slices[strip0 + r * ${ s.strip }u + c];
                    ${ s.store | indent(20) }
                }
            }
            subgroupBarrier();
        }
//% elif s.group
        // A subgroup at a time takes ${ side } rows of its own results: [anchor][row][column].
        const uint strip0 = gl_SubgroupID * ${ s.strip_words }u, half0 = row0 + gl_SubgroupID / 2u * ${ bm // 2 }u;
        for (uint i = 0u; i < ${ matrices }u; ++i) {
            // Compared, not taken as an index, which would put the matrices into memory.
            [[unroll]] for (uint p = 0u; p < ${ matrices }u; ++p) {
                if (p != i) continue;
                [[unroll]] for (uint j = 0u; j < ${ s.wide }u; ++j) {
//% for a in s.anchors
                    coopMatStore(sums[${ a.sum }u + j * ${ matrices }u + p], slices, strip0 + ${ a.row * s.strip }u + j * ${ side // 4 }u, ${ s.strip }u, gl_CooperativeMatrixLayoutRowMajor);
//% endfor
                }
            }
            subgroupBarrier();
            for (uint t = gl_SubgroupInvocationID; t < ${ side * s.across // s.group }u; t += ${ lanes }u) {
                const uint r = t / ${ s.across // s.group }u, c = t % ${ s.across // s.group }u;
                const uint m = half0 + i * ${ side }u + r, g = (column0 + gl_SubgroupID % 2u * ${ s.across }u) / ${ s.group }u + c;
                if (m < ${ m } && g < ${ s.columns }) {
//% for a in s.anchors
                    float ${ a.found }[${ s.group }];
//% if s.group % 4 == 0
                    [[unroll]] for (uint q = 0u; q < ${ s.group // 4 }u; ++q) {
                        const vec4 four = uintBitsToFloat(slices[strip0 + (${ a.row }u + r) * ${ s.strip }u + c * ${ s.group // 4 }u + q]);
                        [[unroll]] for (uint j = 0u; j < 4u; ++j) ${ a.found }[q * 4u + j] = four[j];
                    }
//% else
                    [[unroll]] for (uint j = 0u; j < ${ s.group }u; ++j) ${ a.found }[j] = result((strip0 + (${ a.row }u + r) * ${ s.strip }u) * 4u + c * ${ s.group }u + j);
//% endif
//% endfor
                    ${ s.store | indent(20) }
                }
            }
            subgroupBarrier();
        }
//% else
        // Strips of ${ side } rows of each half of the tile: [anchor][row][column].
        for (uint i = 0u; i < ${ matrices }u; ++i) {
            [[unroll]] for (uint p = 0u; p < ${ matrices }u; ++p) {
                if (p != i) continue;
                [[unroll]] for (uint j = 0u; j < ${ s.wide }u; ++j) {
                    const uint row = gl_SubgroupID / 2u * ${ side }u, column = (gl_SubgroupID % 2u * ${ s.wide }u + j) * ${ side }u;
//% for a in s.anchors
                    coopMatStore(sums[${ a.sum }u + j * ${ matrices }u + p], slices, (${ a.row }u + row) * ${ s.strip }u + column / 4u, ${ s.strip }u, gl_CooperativeMatrixLayoutRowMajor);
//% endfor
                }
            }
            barrier();
            for (uint t = lane; t < ${ 2 * side * s.bn }u; t += ${ workgroup }u) {
                const uint r = t / ${ s.bn }u, m = row0 + r / ${ side }u * ${ bm // 2 }u + i * ${ side }u + r % ${ side }u, n = column0 + t % ${ s.bn }u;
                if (m < ${ m } && n < ${ s.n }) {
                    ${ s.store | indent(20) }
                }
            }
            barrier();
        }
//% endif
//% endmacro
    if (group < ${ s.groups }) {
//% if turns == 1
        const uint column0 = group * ${ s.bn }u;
//% endif
        ${ s.prelude | indent(8) }
        uvec4 left[${ pieces }];
//% for a in s.anchors
        ${ a.type } ${ a.name }[${ s.passes }];
//% endfor
//% if turns > 1
        // Several output tiles: the first K tile of the next is in flight while results are stored.
        uint column0 = group * ${ s.bn * turns }u;
        const uint behind = column0 + ${ s.bn * turns }u;
//% endif
        ${ load("first + " if shared else "", "column0") | indent(8) }
//% if turns == 1
${ tile() }
//% else
        [[dont_unroll]] for (; column0 < behind; column0 += ${ s.bn }u) {
    ${ tile() | indent(4) }
            barrier();
        }
//% endif
        return;
    }
    group -= ${ s.groups };
//% endfor
}
