//% for r in reductions
//% if r.nan
${ r.type } ${ r.part }(${ r.type } x) {
    bool nan = subgroupAny(is_nan(x));
    x = ${ r.subgroup }(nan ? ${ r.identity } : x);
    return nan ? uintBitsToFloat(0x7fc00000u) : x;
}
//% endif
//% endfor
