#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
// What each part of a column found, and how many parts of a tile of columns are done.
//% for place in split.places
layout(set = 0, binding = ${ place.binding }, std430) coherent buffer Parts${ loop.index0 } { ${ place.type } ${ place.name }[]; };
//% endfor
layout(set = 0, binding = ${ split.done }, std430) coherent buffer Done { uint done[]; };
${ functions }
shared uint before;
// A tile of columns is shared by ${ split.parts } workgroups; the last that is done reduces what all of them found.
void main() {
    const uint lane = gl_LocalInvocationIndex % ${ columns }u, slice = gl_LocalInvocationIndex / ${ columns }u;
    const uint part = gl_WorkGroupID.x, tile = gl_WorkGroupID.y;
    ${ prelude | indent(4) }
    const uint r = ${ r };
    ${ body | indent(4) }
}
