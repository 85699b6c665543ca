#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
// The activations: [row][eight elements]; the lower halves of all eights, then the upper.
shared vec4 xs[${ 2 * m * items }];
//% if parts > 1
// Results of the workgroup's columns: [part of the inner extent][anchor][row][column].
//% else
// Results of the workgroup's columns: [anchor][row][column].
//% endif
shared float tile[${ tile_floats }];
//% for floats in rounded
//% if loop.first
// Results that are rounded once their block is whole: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
//% macro product(s, a)
//% if m == 1
${ a.acc } += dot(vec4(w[0], w[1], w[2], w[3]), lo) + dot(vec4(w[4], w[5], w[6], w[7]), hi);
//% else
[[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
    const vec4 lo = xs[m * ${ items }u + ${ s.at }], hi = xs[(m + ${ m }u) * ${ items }u + ${ s.at }];
    ${ a.acc } += dot(vec4(w[0], w[1], w[2], w[3]), lo) + dot(vec4(w[4], w[5], w[6], w[7]), hi);
}
//% endif
//% endmacro
//% macro column(s)
const uint n = min(column0 + ${ s.column }, ${ s.last });
//% for a in s.anchors
// ${ a.comment }
{
    float w[8];
    ${ a.load | indent(4) }
//% if s.whole
    ${ product(s, a) | indent(4) }
//% else
    if (item < ${ s.items }u) {
        ${ product(s, a) | indent(8) }
    }
//% endif
}
//% endfor
//% endmacro
//% macro columns(s, u, one)
//% if one
${ column(s) }
//% else
[[unroll]] for (uint ${ u } = 0u; ${ u } < ${ s.together }u; ++${ u }) {
//% if not s.once
    const uint pass = pass0 + u;
//% endif
    ${ column(s) | indent(4) }
}
//% endif
//% endmacro
//% macro reduce(s, u, one)
[[unroll]] for (uint j = 0u; j < ${ s.accs }u; ++j) {
    const float sum = subgroupAdd(acc[${ "j" if one else u if s.accs == 1 else u ~ " * " ~ s.accs ~ "u + j" }]);
    if (gl_SubgroupInvocationID == 0u${ "" if s.even else " && c < " ~ s.tile ~ "u" }) tile[${ s.part_at }j * ${ s.tile }u + c] = sum;
}
//% endmacro
//% macro pass(s, u, one)
float acc[${ s.together * s.accs }];
[[unroll]] for (uint j = 0u; j < ${ s.together * s.accs }u; ++j) acc[j] = 0.0;
//% if s.steps
for (uint along = 0u; along < ${ s.steps }; ++along) {
    const uint item = ${ s.item }, k0 = ${ s.k0 };
//% if m == 1
    const vec4 lo = xs[${ s.at }], hi = xs[${ items }u + ${ s.at }];
//% endif
    ${ columns(s, u, one) | indent(4) }
}
//% else
${ columns(s, u, one) }
//% endif
//% if one
const uint c = ${ s.column };
${ reduce(s, u, one) }
//% else
[[unroll]] for (uint ${ u } = 0u; ${ u } < ${ s.together }u; ++${ u }) {
//% if not s.once
    const uint pass = pass0 + u;
//% endif
    const uint c = ${ s.column };
    ${ reduce(s, u, one) | indent(4) }
}
//% endif
//% endmacro
void main() {
    const uint lane = gl_LocalInvocationIndex, group = gl_WorkGroupID.x;
    ${ prelude | indent(4) }
//% if steps
    [[unroll]] for (uint k = 0u; k < ${ steps }u; ++k) {
        const uint g = k * ${ workgroup }u + lane, quad = g;
//% else
    for (uint quad = lane; quad < ${ 2 * m * items }u; quad += ${ workgroup }u) {
        const uint m = quad / ${ 2 * items }u;
        ${ m_lines | indent(8) }
        const uint g = quad % ${ 2 * items }u;
//% endif
        vec4 x;
        ${ x_lines | indent(8) }
        xs[quad % 2u * ${ m * items }u + quad / 2u] = x;
    }
    barrier();
//% for s in segments
    if (${ s.here }) {
        const uint column0 = ${ s.column0 };
        ${ s.prelude | indent(8) }
        // ${ s.comment }
//% if not s.steps
        const uint item = ${ s.item }, k0 = ${ s.k0 };
//% if m == 1
        const vec4 lo = xs[${ s.at }], hi = xs[${ items }u + ${ s.at }];
//% endif
//% endif
//% if s.once
        ${ pass(s, "pass", s.together == 1) | indent(8) }
//% else
        const uint passes = ${ s.passes };
//% if s.together == 1
        for (uint pass = 0u; pass < passes; ++pass) {
//% else
        for (uint pass0 = 0u; pass0 < passes; pass0 += ${ s.together }u) {
//% endif
            ${ pass(s, "u", s.together == 1) | indent(12) }
        }
//% endif
        ${ s.end | indent(8) }
//% if not loop.last
        return;
//% endif
    }
//% endfor
}
