// (Scales, offsets) of two neighbouring groups of q4_k or q5_k: w = d * sc * q - dmin * m. Six bits each, of both groups at once;
// those of the upper four groups lie in two places.
vec4 pair_scales(uint e, uint dm, uvec3 bits) {
    uvec3 s = bits >> ((e >> 2) & 16u);
    bool lower = (e & 128u) == 0u;
    uint sc = lower ? s.x & 0x3f3fu : (s.z & 0x0f0fu) | ((s.x >> 2) & 0x3030u);
    uint m = lower ? s.y & 0x3f3fu : ((s.z >> 4) & 0x0f0fu) | ((s.y >> 2) & 0x3030u);
    vec2 d = unpackHalf2x16(dm);
    return vec4(d.x * vec2(sc & 255u, sc >> 8), -d.y * vec2(m & 255u, m >> 8));
}
