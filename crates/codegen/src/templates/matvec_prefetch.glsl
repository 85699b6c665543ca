// Weights in flight. The first loads are issued before the activations are quantized.
uint next[${ slots }][${ words }];
//% for s in segments
if (${ s.here }) {
    const uint column0 = ${ s.column0 };
    ${ s.ahead_prelude | indent(4) }
//% set i = "along" if s.along else "pass"
    [[unroll]] for (uint ${ i } = 0u; ${ i } < ${ s.depth }u; ++${ i }) {
        const uint item = ${ s.item if s.along else s.item | replace("along", "0u") }, n = min(column0 + ${ s.column }, ${ s.last });
//% for fetch in s.fetches
        {
            const uint k0 = ${ fetch.k0 };
            ${ fetch.lines | indent(12) }next[${ fetch.slot }]);
        }
//% endfor
    }
}
//% endfor
