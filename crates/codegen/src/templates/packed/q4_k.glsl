// Two halves of neighbouring groups of q4_k, those from element e & ~63 + (e & 32) / 2 on: their words,
// and as signed bytes with (scales, offsets): w = d * sc * q - dmin * m.
void fetch${ b }(uint e, out uint raw[${ words }]) {
    uvec4 qs = quad${ b }(${ qs // 4 }u + (e >> 5)), head = quad${ b }(${ head // 4 }u + (e >> 8));
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i] = qs[i];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) raw[i + 4u] = head[i];
}
vec4 packed${ b }(uint e, uint raw[${ words }], out int q[8]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        q[i] = int(raw[i] & 0x0f0f0f0fu);
        q[i + 4u] = int((raw[i] >> 4) & 0x0f0f0f0fu);
    }
    vec2 d = unpackHalf2x16(raw[4]);
    // Six bits each, of two groups at once: those of the upper four groups lie in two places.
    uint at = (e >> 2) & 16u, x = raw[5] >> at, y = raw[6] >> at, z = raw[7] >> at;
    bool lower = (e & 128u) == 0u;
    uint sc = lower ? x & 0x3f3fu : (z & 0x0f0fu) | ((x >> 2) & 0x3030u);
    uint m = lower ? y & 0x3f3fu : ((z >> 4) & 0x0f0fu) | ((y >> 2) & 0x3030u);
    return vec4(d.x * vec2(sc & 255u, sc >> 8), -d.y * vec2(m & 255u, m >> 8));
}
