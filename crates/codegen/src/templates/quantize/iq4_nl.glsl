// The level of iq4_nl nearest to a value, and its number: a step up for each border between two levels below the value.
float nearest_level(float value, out uint number) {
    float level = -127.0;
    number = 0u;
//% for border, step in borders
    if (value > ${ border }) { level += ${ step }; ++number; }
//% endfor
    return level;
}
// iq4_nl: of scales around the obvious one, of both signs, the one that leaves the least squared error; with the best
// scale for given levels that is a constant less cross^2 / square. Summed in eight lanes, as the definition does.
void round_iq4_nl(float x[32], out uint words[${ words }]) {
    float most = 0.0;
    for (uint j = 0u; j < 32u; ++j) most = max(most, abs(x[j]));
    precise float best = 0.0, scale = 0.0;
    uint levels[32];
    if (most >= 1e-15 && most < uintBitsToFloat(0x7f800000u)) {
        for (int i = 0; i < 62; ++i) {
            precise const float reach = 127.0 + 0.1 * float(i % 31 - 12) * ${ gap };
            precise const float inverse = (i < 31 ? reach : -reach) / most;
            precise float xl[8], ll[8];
            for (uint j = 0u; j < 8u; ++j) xl[j] = ll[j] = 0.0;
            for (uint j = 0u; j < 32u; ++j) {
                precise const float level = nearest_level(inverse * x[j], levels[j]);
                xl[j % 8u] += x[j] * level;
                ll[j % 8u] += level * level;
            }
            precise float cross = 0.0, square = 0.0;
            for (uint j = 0u; j < 8u; ++j) {
                cross += xl[j];
                square += ll[j];
            }
            if (square > 0.0 && cross * cross > best * square) {
                scale = cross / square;
                best = cross * scale;
            }
        }
    }
    const float d = round_f16(clamp(scale, -65504.0, 65504.0)), inverse = d == 0.0 ? 0.0 : 1.0 / d;
    for (uint j = 0u; j < 32u; ++j) nearest_level(x[j] * inverse, levels[j]);
    [[unroll]] for (uint word = 0u; word < 4u; ++word) words[word] = nibbles_of(levels, word);
    words[4] = packHalf2x16(vec2(d, 0.0));
}
