// Elements e .. e + 31 of iq4_xs as signed bytes and their scale: w = d * (sc - 32) * level.
float packed${ b }(uint e, out int q[8]) {
    uint block = e >> 8, group = (e >> 5) & 7u;
    uvec4 qs = quad${ b }(${ qs // 4 }u + block * 8u + group);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = iq4_bytes(qs[i]);
        q[i + 4u] = iq4_bytes(qs[i] >> 4);
    }
    uint head = at${ b }(${ head }u + block * 2u), lows = at${ b }(${ head }u + block * 2u + 1u);
    uint sc = bitfieldExtract(lows, int(4u * group), 4) | (bitfieldExtract(head, int(16u + 2u * group), 2) << 4);
    return unpackHalf2x16(head).x * (float(sc) - 32.0);
}
