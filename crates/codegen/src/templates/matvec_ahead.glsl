// Weights on their way. The first are asked for before the activations are rounded.
uint next[${ slots }][${ words }];
//% for s in segments
if (${ s.here }) {
    const uint column0 = ${ s.column0 };
    ${ s.ahead_prelude | indent(4) }
    [[unroll]] for (uint i = 0u; i < ${ s.depth }u; ++i) {
        const uint block = ${ s.block }, c = ${ s.column }, n = min(column0 + c, ${ s.last }), k0 = ${ s.k0 };
//% for fetch in s.fetches
        ${ fetch.lines | indent(8) }next[i${ s.slots }${ fetch.slot }]);
//% endfor
    }
}
//% endfor
