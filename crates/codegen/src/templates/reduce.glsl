//% if columns > 1
// Reductions over the slices of ${ columns } neighbouring columns; every invocation gets the result of its column.
//% else
// Reductions over the workgroup; every invocation gets the result.
//% endif
shared float scratch_float[${ slots }];
//% if "arg" in kinds
shared uint scratch_index[${ slots }];
//% endif
//% if "scratch_uint" in types
shared uint scratch_uint[${ slots }];
//% endif
//% if "scratch_long" in types
shared int64_t scratch_long[${ slots }];
//% endif
//% if "scratch_double" in types
shared double scratch_double[${ slots }];
//% endif
//% for r in reductions
//% if subgroup and r.subgroup
//% if r.nan
${ r.type } ${ r.part }(${ r.type } x) {
    bool nan = subgroupAny(is_nan(x));
    x = ${ r.subgroup }(nan ? ${ r.identity } : x);
    return nan ? uintBitsToFloat(0x7fc00000u) : x;
}
//% endif
${ r.type } ${ r.name }(${ r.type } x) {
    x = ${ r.part }(x);
    if (gl_NumSubgroups == 1u) return x;
    barrier();
    if (subgroupElect()) ${ r.scratch }[gl_SubgroupID] = ${ r.to }(x);
    barrier();
//% if few
    return ${ r.part }(gl_SubgroupInvocationID < gl_NumSubgroups ? ${ r.from }(${ r.scratch }[gl_SubgroupInvocationID]) : ${ r.identity });
//% else
    x = ${ r.from }(${ r.scratch }[0]);
    for (uint s = 1u; s < gl_NumSubgroups; ++s) {
        ${ r.type } y = ${ r.from }(${ r.scratch }[s]);
        x = ${ r.combine };
    }
    return x;
//% endif
}
//% else
${ r.type } ${ r.name }(${ r.type } x) {
    barrier();
    ${ r.scratch }[gl_LocalInvocationIndex] = ${ r.to }(x);
    barrier();
    for (uint s = ${ half }u; ${ while }; s >>= 1) {
        if (gl_LocalInvocationIndex < s) {
            ${ r.type } y = ${ r.from }(${ r.scratch }[gl_LocalInvocationIndex + s]);
            x = ${ r.combine };
            ${ r.scratch }[gl_LocalInvocationIndex] = ${ r.to }(x);
        }
        barrier();
    }
    return ${ r.from }(${ r.scratch }[${ own }]);
}
//% endif
//% endfor
//% for r in args
// Index of the first ${ r.word } over the workgroup; NaN counts as beyond every number.
uint ${ r.name }(${ r.type } x, uint at) {
    barrier();
    ${ r.scratch }[gl_LocalInvocationIndex] = ${ r.to }(x);
    scratch_index[gl_LocalInvocationIndex] = at;
    barrier();
    for (uint s = ${ half }u; ${ while }; s >>= 1) {
        if (gl_LocalInvocationIndex < s) {
            ${ r.type } y = ${ r.from }(${ r.scratch }[gl_LocalInvocationIndex + s]);
            uint b = scratch_index[gl_LocalInvocationIndex + s];
            if (${ r.better } || (!(${ r.worse }) && b < at)) { x = y; at = b; }
            ${ r.scratch }[gl_LocalInvocationIndex] = ${ r.to }(x);
            scratch_index[gl_LocalInvocationIndex] = at;
        }
        barrier();
    }
    return scratch_index[${ own }];
}
//% endfor
