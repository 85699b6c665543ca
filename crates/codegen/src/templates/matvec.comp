${ head }
// Sums of the tile's columns: ${ "[K slice]" if slices > 1 }[anchor][row][column].
shared ${ type } tile[${ slice_floats * slices }];
//% for floats in rounded
//% if loop.first
// Results that are quantized once their block is complete: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
void main() {
    const uint lane = ${ lane }, group = gl_WorkGroupID.x;
//% if folded
    const uint batch = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (batch >= ${ batches }) return;
//% elif batched
    const uint batch = gl_WorkGroupID.y;
//% endif
    ${ item | indent(4) }
    ${ prelude | indent(4) }
    ${ staging | indent(4) }
//% for s in segments
    if (${ s.range.test }) {
        const uint column0 = ${ s.range.column0 };
        ${ s.prelude | indent(8) }
        ${ s.columns | indent(8) }
        ${ s.epilogue | indent(8) }
//% if not loop.last
        return;
//% endif
    }
//% endfor
}
