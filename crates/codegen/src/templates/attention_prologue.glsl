//% set sums = values * step if split else slots
const uint keys = ${ t };
for (uint d = ${ "tid" if split else "lane" }; d < ${ d }u; d += ${ workgroup }u) {
    ${ q_lines | indent(4) }
    query[d] = ${ q } * ${ scale };
}
//% if causal or window
// Keys up to the query's own, i + T - S, which is below 0 where queries outnumber keys.
const uint past = s + 1u + keys;
const uint own = past > ${ s_extent } ? past - ${ s_extent } : 0u;
//% endif
const uint first = ${ "own > " ~ window ~ "u ? own - " ~ window ~ "u : 0u" if window else "0u" };
const uint end = ${ "own" if causal else "keys" };
const ${ type } hidden = ${ hidden };
${ type } top = hidden, sum = ${ zero };
${ type } acc[${ sums }];
[[unroll]] for (uint i = 0u; i < ${ sums }u; ++i) acc[i] = ${ zero };
