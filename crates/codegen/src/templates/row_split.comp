#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
//% if columns
// What each part of a column found, and how many parts of a tile of columns are done.
//% else
// What each part of a row found, and how many parts of a row are done.
//% endif
//% for place in split.places
layout(set = 0, binding = ${ place.binding }, std430) coherent buffer Parts${ loop.index0 } { ${ place.type } ${ place.name }[]; };
//% endfor
layout(set = 0, binding = ${ split.done }, std430) coherent buffer Done { uint done[]; };
${ functions }
shared uint before;
//% if columns
// A tile of columns is shared by ${ split.parts } workgroups; the last that is done reduces what all of them found.
//% else
// A row is shared by ${ split.parts } workgroups; the last that is done reduces what all of them found.
//% endif
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
