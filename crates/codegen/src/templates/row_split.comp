${ head }
//% set whole = "tile of columns" if columns else "row"
// What each part of a ${ "column" if columns else "row" } found, and how many parts of a ${ whole } are done.
${ partials }
// A ${ whole } is shared by ${ parts } workgroups; the last that is done reduces what all of them found.
void main() {
//% if columns
    const uint lane = gl_LocalInvocationIndex % ${ columns }u, slice = gl_LocalInvocationIndex / ${ columns }u;
    const uint part = gl_WorkGroupID.x, tile = gl_WorkGroupID.y;
//% else
    const uint lane = gl_LocalInvocationIndex, part = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
//% endif
    ${ prelude | indent(4) }
    ${ body | indent(4) }
}
