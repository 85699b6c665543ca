//% if steps
[[unroll]] for (uint k = 0u; k < ${ steps }u; ++k) {
    const uint g = k * ${ workgroup }u + lane, quad = g;
//% else
for (uint quad = lane; quad < ${ 2 * m * items }u; quad += ${ workgroup }u) {
    const uint m = quad / ${ 2 * items }u;
    ${ row | indent(4) }
    const uint g = quad % ${ 2 * items }u;
//% endif
    vec4 x;
    ${ group | indent(4) }
    xs[quad % 2u * ${ m * items }u + quad / 2u] = x;
}
barrier();
