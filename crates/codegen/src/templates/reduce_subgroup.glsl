//% for r in args
// Index of the first ${ r.word } over the subgroup; NaN counts as beyond every number.
uint ${ r.name }(${ r.type } x, uint at) {
//% if r.nan
    const bool nan = is_nan(x);
    if (subgroupAny(nan)) return subgroupMin(nan ? at : 0xffffffffu);
//% endif
    return subgroupMin(x == ${ r.subgroup }(x) ? at : 0xffffffffu);
}
//% endfor
//% for r in reductions
//% if r.nan
${ r.type } ${ r.part }(${ r.type } x) {
    bool nan = subgroupAny(is_nan(x));
    x = ${ r.subgroup }(nan ? ${ r.identity } : x);
    return nan ? uintBitsToFloat(0x7fc00000u) : x;
}
//% endif
//% endfor
