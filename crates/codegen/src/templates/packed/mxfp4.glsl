// Elements e .. e + 31 of mxfp4 as signed bytes and their scale: w = 2^(e - 128) * level, a power below 2^-126 being 0.
float packed${ b }(uint e, out int q[8]) {
    uint block = e >> 5;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = fp4_bytes(qs[i]);
        q[i + 4u] = fp4_bytes(qs[i] >> 4);
    }
    uint power = bitfieldExtract(at${ b }(${ e }u + (block >> 2)), int(8u * (block & 3u)), 8);
    return uintBitsToFloat((max(power, 1u) - 1u) << 23);
}
