${ head }
//% if computed
// What a function that computes elements of a matrix is handed; they are read by where they are, not through it.
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Element { float16_t x; };
//% endif
//% for s in segments
//% for o in s.operands
//% if o.value
// ${ o.comment }
float16_t ${ o.name }(const in Element e, const in uint at[2], const in uint inside[2]) {
    const uint batch = gl_WorkGroupID.z, ${ o.own } = at[0], k = at[1];
    ${ prelude | indent(4) }
    ${ s.prelude | indent(4) }
//% if o.guarded
    if (${ o.own } >= ${ o.rows } || k >= ${ o.columns }) {
        return float16_t(0.0);
    }
//% endif
    ${ o.lines | indent(4) }
    return float16_t(${ o.value });
}
//% endif
//% endfor
float results${ s.at }(const in uint row, const in uint column${ s.found }, const in uint column0) {
    const uint batch = gl_WorkGroupID.z, m = gl_WorkGroupID.x * ${ side }u + row, n = column0 + column;
    ${ prelude | indent(4) }
    ${ s.prelude | indent(4) }
    if (m < ${ m } && n < ${ s.n }) {
        ${ s.store | indent(8) }
    }
    return found0;
}
//% endfor
void main() {
    const uint batch = gl_WorkGroupID.z, row0 = gl_WorkGroupID.x * ${ side }u;
    uint group = gl_WorkGroupID.y;
    ${ prelude | indent(4) }
//% for s in segments
    if (group < ${ s.groups }) {
        const uint column0 = group * ${ s.bn }u;
        ${ s.prelude | indent(8) }
        // Beyond their extents, operands are zero.
//% for o in s.operands
        tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> ${ o.name }_layout = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        ${ o.name }_layout = setTensorLayoutDimensionNV(${ o.name }_layout, ${ o.rows }, ${ o.columns });
//% if o.stride
        ${ o.name }_layout = setTensorLayoutStrideNV(${ o.name }_layout, ${ o.stride }, 1u);
//% endif
//% endfor
//% if s.transposed
        const tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);
//% endif
//% for a in s.anchors
        coopmat<float, gl_ScopeWorkgroup, ${ side }, ${ s.bn }, gl_MatrixUseAccumulator> sums${ loop.index0 } = coopmat<float, gl_ScopeWorkgroup, ${ side }, ${ s.bn }, gl_MatrixUseAccumulator>(0.0);
//% endfor
        [[dont_unroll]] for (uint k0 = 0u; k0 < ${ k }; k0 += ${ bk }u) {
            coopmat<float16_t, gl_ScopeWorkgroup, ${ side }, ${ bk }, gl_MatrixUseA> a;
            coopmat<float16_t, gl_ScopeWorkgroup, ${ bk }, ${ s.bn }, gl_MatrixUseB> b;
//% for o in s.operands
            coopMatLoadTensorNV(${ o.matrix }, ${ o.array }, ${ o.base }, sliceTensorLayoutNV(${ o.name }_layout, ${ o.slice })${ ", transposed" if o.is_transposed }${ ", " ~ o.name if o.value });
//% if not loop.first
            // ${ o.comment }
            sums${ loop.index0 - 1 } = coopMatMulAdd(a, b, sums${ loop.index0 - 1 });
//% endif
//% endfor
        }
        coopMatPerElementNV(sums0, sums0, results${ s.at }${ s.others }, column0);
        return;
    }
    group -= ${ s.groups };
//% endfor
}
