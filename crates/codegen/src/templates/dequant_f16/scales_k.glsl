// Scale and minimum of a group of 32 elements out of the head of a block of 256.
vec2 scales_k(uvec4 head, uint group) {
    uint j = group & 3u;
    vec2 d = unpackHalf2x16(head.x);
    uint s0 = head.y >> (8u * j), s1 = head.z >> (8u * j), s2 = head.w >> (8u * j);
    uint sc = group < 4u ? s0 & 63u : (s2 & 15u) | ((s0 >> 2) & 48u);
    uint m = group < 4u ? s1 & 63u : ((s2 >> 4) & 15u) | ((s1 >> 2) & 48u);
    return vec2(d.x * float(sc), d.y * float(m));
}
