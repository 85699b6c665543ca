for (uint kk = 0u; kk < ${ bk }u; ++kk) {
    ${ vector } x[${ tm // 4 }], w[${ tn // 4 }];
    [[unroll]] for (uint g = 0u; g < ${ tm // 4 }u; ++g) x[g] = slices[kk * ${ left_stride }u + g * ${ rows }u + ty];
    [[unroll]] for (uint g = 0u; g < ${ tn // 4 }u; ++g) w[g] = slices[${ right_at }u + kk * ${ right_stride }u + g * ${ columns }u + tx];
    [[unroll]] for (uint j = 0u; j < ${ tn }u; ++j)
        [[unroll]] for (uint i = 0u; i < ${ tm }u; ++i) ${ sum } = ${ product };
}
