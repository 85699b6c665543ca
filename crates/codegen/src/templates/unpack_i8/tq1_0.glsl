// Elements e .. e + 31 of tq1_0: their words, and as signed bytes with (scale, offset): w = d * q - d. Those below 160 are
// the same digit of 32 bytes, those below 240 in halves two digits of 16 bytes; the last 16 are four digits of 4 bytes.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uint block = e >> 8, first = ${ qs // 4 }u + block * 3u;
    bool lower = (e & 255u) < 160u;
    uvec4 lo = quad${ b }(lower ? first : first + 2u), hi = quad${ b }(lower ? first + 1u : first + 2u);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        raw[i] = lo[i];
        raw[i + 4u] = hi[i];
    }
    raw[8] = at${ b }(${ qh }u + block);
    raw[9] = at${ b }(${ d }u + (e >> 9));
}
vec2 packed${ b }(uint e, uint raw[${ words }], out ivec4 q[2]) {
    uint j = e & 255u;
    bool lower = j < 160u, last = j == 224u;
    uint digit = lower ? j >> 5 : (j - 160u) >> 4, power = 1u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) power *= i < digit ? 3u : 1u;
    uint next = lower ? power : 3u * power;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[0][i] = int(tq1_bytes(raw[i], power));
        q[1][i] = int(tq1_bytes(last ? raw[8] : raw[i + 4u], last ? (0x1b090301u >> (8u * i)) & 255u : next));
    }
    float d = unpackHalf2x16(raw[9] >> (16u * ((e >> 8) & 1u))).x;
    return vec2(d, -d);
}
