[[unroll]] for (uint kk = 0u; kk < ${ bk // side }u; ++kk) {
    ${ a } a[${ matrices }];
    ${ b } b;
    [[unroll]] for (uint i = 0u; i < ${ matrices }u; ++i)
//% if left_across
        coopMatLoad(a[i], slices, kk * ${ side * (bm // 8 + 1) }u + left0 + i * ${ side // 8 }u, ${ bm // 8 + 1 }u, gl_CooperativeMatrixLayoutColumnMajor);
//% else
        coopMatLoad(a[i], slices, left0 + i * ${ side * stride }u + kk * ${ side // 8 }u, ${ stride }u, gl_CooperativeMatrixLayoutRowMajor);
//% endif
    [[unroll]] for (uint j = 0u; j < ${ wide }u; ++j) {
        const uint column = (gl_SubgroupID % ${ grid }u * ${ wide }u + j) * ${ side }u;
//% for anchor in anchors
//% if anchor.by_columns
        coopMatLoad(b, slices, ${ anchor.at }u + kk * ${ side * (bn // 8 + 1) }u + column / 8u, ${ bn // 8 + 1 }u, gl_CooperativeMatrixLayoutRowMajor);
//% else
        coopMatLoad(b, slices, ${ anchor.at }u + column * ${ stride }u + kk * ${ side // 8 }u, ${ stride }u, gl_CooperativeMatrixLayoutColumnMajor);
//% endif
        [[unroll]] for (uint i = 0u; i < ${ matrices }u; ++i)
            sums[${ anchor.sum }u + j * ${ matrices }u + i] = coopMatMulAdd(a[i], b, sums[${ anchor.sum }u + j * ${ matrices }u + i]);
//% endfor
    }
}
