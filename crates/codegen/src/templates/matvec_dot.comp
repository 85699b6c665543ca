#version 450
${ extensions }
${ header }
layout(local_size_x = ${ workgroup }) in;
${ declarations }
${ functions }
//% if in_memory is none
// The activations, rounded to blocks of 32 bytes: [row][block]; the lower halves of all blocks, then from ${ upper } on the upper.
shared ivec4 x_bytes[${ upper + m * blocks }];
// The scale of a block, and it times the sums of the block's halves.
shared float x_scale[${ m * blocks }];
shared vec2 x_sum[${ m * blocks }];
//% endif
//% if parts > 1
// Results of the workgroup's columns: [part of the inner extent][anchor][row][column].
//% else
// Results of the workgroup's columns: [anchor][row][column].
//% endif
shared float tile[${ tile_floats }];
//% for floats in rounded
//% if loop.first
// Results that are rounded once their block is whole: [row][column].
//% endif
shared float rounded${ loop.index0 }[${ floats }];
//% endfor
// Of 16 products of weights and activations.
int dot16(ivec4 q, ivec4 x) {
    return dotPacked4x8EXT(q.x, x.x) + dotPacked4x8EXT(q.y, x.y) + dotPacked4x8EXT(q.z, x.z) + dotPacked4x8EXT(q.w, x.w);
}
//% if in_memory is not none
// A block of activations: its halves, its scale, and that times the sums of the halves.
float activations(uint block, out ivec4 lo, out ivec4 hi, out vec2 sums) {
    const float scale = block${ in_memory }(block, lo, hi);
    const ivec4 ones = ivec4(0x01010101);
    sums = scale * vec2(dot16(ones, lo), dot16(ones, hi));
    return scale;
}
//% endif
//% macro activations(s)
//% for x in s.sets
const uint at${ x.name } = ${ x.first };
//% if in_memory is not none
//% if x.stride
ivec4 x${ x.name }[4];
vec2 scale${ x.name }, sums${ x.name }_0, sums${ x.name }_1;
scale${ x.name }.x = activations(at${ x.name }, x${ x.name }[0], x${ x.name }[1], sums${ x.name }_0);
scale${ x.name }.y = activations(at${ x.name } + ${ x.stride }u, x${ x.name }[2], x${ x.name }[3], sums${ x.name }_1);
const vec4 sums${ x.name } = vec4(sums${ x.name }_0, sums${ x.name }_1);
//% else
ivec4 x[2];
vec2 sums;
const float scale = activations(at, x[0], x[1], sums);
//% endif
//% elif x.stride
const ivec4 x${ x.name }[4] = ivec4[4](x_bytes[at${ x.name }], x_bytes[at${ x.name } + ${ upper }u], x_bytes[at${ x.name } + ${ x.stride }u], x_bytes[at${ x.name } + ${ upper + x.stride }u]);
const vec2 scale${ x.name } = vec2(x_scale[at${ x.name }], x_scale[at${ x.name } + ${ x.stride }u]);
const vec4 sums${ x.name } = vec4(x_sum[at${ x.name }], x_sum[at${ x.name } + ${ x.stride }u]);
//% else
const ivec4 x[2] = ivec4[2](x_bytes[at], x_bytes[at + ${ upper }u]);
const float scale = x_scale[at];
const vec2 sums = x_sum[at];
//% endif
//% endfor
//% endmacro
//% macro product(a)
//% if a.packing == "pairs"
${ a.acc } += scale.x * w.x * float(dot16(q[0], x[0]) + dot16(q[1], x[1])) + scale.y * w.y * float(dot16(q[2], x[2]) + dot16(q[3], x[3]))
    + w.z * (sums.x + sums.y) + w.w * (sums.z + sums.w);
//% elif a.packing == "quarters"
const vec4 found = vec4(dot16(q[0], x${ a.set }[0]), dot16(q[1], x${ a.set }[1]), dot16(q[2], x${ a.set }[2]), dot16(q[3], x${ a.set }[3]));
${ a.acc } += scale${ a.set }.x * dot(w[0].xy, found.xy) + scale${ a.set }.y * dot(w[0].zw, found.zw) + dot(w[1], sums${ a.set });
//% elif a.packing == "halves"
${ a.acc } += scale${ a.of } * dot(w.xy, vec2(dot16(q[0], x[${ a.at }]), dot16(q[1], x[${ a.at + 1 }]))) + dot(w.zw, sums${ a.both });
//% elif a.packing == "offset"
${ a.acc } += scale${ a.of } * w.x * float(dot16(q[0], x[${ a.at }]) + dot16(q[1], x[${ a.at + 1 }])) + w.y * (${ a.sum });
//% else
${ a.acc } += scale${ a.of } * w * float(dot16(q[0], x[${ a.at }]) + dot16(q[1], x[${ a.at + 1 }]));
//% endif
//% endmacro
//% macro reduce(s, u)
[[unroll]] for (uint j = 0u; j < ${ s.accs }u; ++j) {
    float sum = acc[${ "j" if s.together == 1 else u if s.accs == 1 else u ~ " * " ~ s.accs ~ "u + j" }];
//% if size == "gl_SubgroupSize"
    sum = subgroupAdd(sum);
//% else
    [[unroll]] for (uint mask = 1u; mask < ${ size }; mask *= 2u) sum += subgroupShuffleXor(sum, mask);
//% endif
    if (gl_SubgroupInvocationID == 0u${ "" if s.even else " && c < " ~ s.tile ~ "u" }) tile[${ s.part_at }j * ${ s.tile }u + c] = sum;
}
//% endmacro
//% macro products(s, a)
//% if m == 1
${ product(a) }
//% else
[[unroll]] for (uint m = 0u; m < ${ m }u; ++m) {
    ${ activations(s) | indent(4) }
    ${ product(a) | indent(4) }
}
//% endif
//% endmacro
//% macro within_row(s, a)
//% if s.whole
${ products(s, a) }
//% else
if (item < ${ s.items }u) {
    ${ products(s, a) | indent(4) }
}
//% endif
//% endmacro
//% macro step(s)
const uint along = along0 + s, item = ${ s.item };
//% if m == 1
${ activations(s) }
//% endif
//% for a in s.anchors
// ${ a.comment }
{
    const uint k0 = ${ a.k0 };
    ivec4 q[${ a.halves }];
    ${ a.unpack | indent(4) }
    const uint then = along + ${ s.depth }u;
    if (then < ${ s.steps }) {
        const uint item = ${ s.item | replace("along", "then") }, k0 = ${ a.k0 };
        ${ a.fetch | indent(8) }${ a.ahead });
    }
    ${ within_row(s, a) | indent(4) }
}
//% endfor
//% endmacro
//% macro ask(s, u, one, a)
//% if s.once and not s.steps
//% if not one
if (pass + ${ s.depth }u < ${ s.together }u) {
    const uint ahead = pass + ${ s.depth }u;
//% endif
//% elif not s.steps
const uint ahead = pass + ${ s.depth }u;
if (ahead < passes) {
//% elif one
const uint ahead = next_pass, then = next_along;
if (ahead < passes) {
//% else
const bool here = ${ u } + ${ s.depth }u < ${ s.together }u;
//% if s.once
const uint ahead = here ? pass + ${ s.depth }u : pass + ${ s.depth }u - ${ s.together }u, then = here ? along : along + 1u;
if (then < steps) {
//% else
const uint ahead = here ? pass + ${ s.depth }u : next_pass + u + ${ s.depth }u - ${ s.together }u, then = here ? along : next_along;
if (ahead < passes) {
//% endif
//% endif
//% if not (one and s.once)
//% if s.steps
    const uint item = ${ s.item | replace("along", "then") }, k0 = ${ a.k0 };
//% endif
    const uint n = min(column0 + ${ s.column | replace("pass", "ahead") }, ${ s.last });
    ${ a.fetch | indent(4) }${ a.ahead });
}
//% endif
//% endmacro
//% macro column(s, u, one)
const uint n = min(column0 + ${ s.column }, ${ s.last });
//% for a in s.anchors
// ${ a.comment }
{
    const uint k0 = ${ a.k0 };
//% if s.depth < s.slots
    ${ ask(s, u, one, a) | indent(4) }
//% endif
    ivec4 q[${ a.halves }];
    ${ a.unpack | indent(4) }
//% if s.depth == s.slots
    ${ ask(s, u, one, a) | indent(4) }
//% endif
    ${ within_row(s, a) | indent(4) }
}
//% endfor
//% endmacro
//% macro columns(s, u, one)
//% if one
${ column(s, u, one) }
//% else
[[unroll]] for (uint ${ u } = 0u; ${ u } < ${ s.together }u; ++${ u }) {
//% if not s.once
    const uint pass = pass0 + u;
//% endif
    ${ column(s, u, one) | indent(4) }
}
//% endif
//% endmacro
//% macro pass(s, u, one)
float acc[${ s.together * s.accs }];
[[unroll]] for (uint j = 0u; j < ${ s.together * s.accs }u; ++j) acc[j] = 0.0;
//% if s.steps
const uint steps = ${ s.steps };
for (uint along = 0u; along < steps; ++along) {
    const uint item = ${ s.item };
//% if m == 1
    ${ activations(s) | indent(4) }
//% endif
//% if not s.once
    const uint next_along = along + 1u < steps ? along + 1u : 0u, next_pass = next_along == 0u ? ${ "pass + 1u" if one else "pass0 + " ~ s.together ~ "u" } : ${ "pass" if one else "pass0" };
//% endif
    ${ columns(s, u, one) | indent(4) }
}
//% else
${ columns(s, u, one) }
//% endif
//% if one
const uint c = ${ s.column };
${ reduce(s, u) }
//% else
[[unroll]] for (uint ${ u } = 0u; ${ u } < ${ s.together }u; ++${ u }) {
//% if not s.once
    const uint pass = pass0 + u;
//% endif
    const uint c = ${ s.column };
    ${ reduce(s, u) | indent(4) }
}
//% endif
//% endmacro
void main() {
    // Counted through subgroups, so that neighbours are in one.
    const uint lane = gl_SubgroupID * ${ size } + gl_SubgroupInvocationID, group = gl_WorkGroupID.x;
//% if first
    // An invocation's activations are the same for all columns: everything waits for them.
    const uint item = ${ segments[0].item };
    ${ activations(segments[0]) | indent(4) }
//% endif
    ${ prelude | indent(4) }
//% if in_memory is none
    // Each takes ${ elements } elements, ${ lanes } invocations a block.
//% macro rounded(exact)
    const float inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    const uint half_at = (word0 < 4u ? 0u : ${ upper }u) + block;
    int sum = 0;
    [[unroll]] for (uint j = 0u; j < ${ words }u; ++j) {
        uint q[4];
//% if exact
        [[unroll]] for (uint i = 0u; i < 4u; ++i) q[i] = ${ exact }(x[4u * j + i] * inverse);
//% else
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            precise float y = x[4u * j + i] * inverse, even = y + 12582912.0;
            q[i] = floatBitsToUint(even);
            doubt |= q[i] ^ floatBitsToUint(fma(y, 1.00000011920928955078125, 12582912.0)) | q[i] & 0x04000000u;
        }
//% endif
        const int word = int((q[0] & 255u) | (q[1] & 255u) << 8 | (q[2] & 255u) << 16 | q[3] << 24);
        sum += dotPacked4x8EXT(word, 0x01010101);
        x_bytes[half_at][(word0 + j) & 3u] = word;
    }
//% for mask in sum_masks
    sum += subgroupShuffleXor(sum, ${ mask }u);
//% endfor
    const float d = round_f16(scale);
    if (word0 == 0u) x_scale[block] = d;
    if ((word0 & 3u) == 0u) x_sum[block][word0 / 4u] = d * float(sum);
//% endmacro
//% macro bits()
    // As bits, which order magnitudes and show infinity and NaN: NaN counts as 0, and besides infinity all is 0.
    uint size = 0u;
    [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) size = max(size, floatBitsToUint(x[j]) & 0x7fffffffu);
    if (size >= 0x7f800000u) {
        size = 0u;
        [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) {
            const uint bits = floatBitsToUint(x[j]) & 0x7fffffffu;
            if (bits <= 0x7f800000u) size = max(size, bits);
            if (bits >= 0x7f800000u) x[j] = 0.0;
        }
    }
//% for mask in masks
    size = max(size, subgroupShuffleXor(size, ${ mask }u));
//% endfor
    const float scale = uintBitsToFloat(size) / 127.0;
${ rounded("low_byte") }
//% endmacro
//% macro runs(exact)
//% if kept
{
    const uint block = lane / ${ lanes }u, word0 = lane % ${ lanes }u * ${ words }u;
//% else
for (uint run = lane; run < ${ m * blocks * lanes }u; run += ${ workgroup }u) {
    const uint m = run / ${ blocks * lanes }u, block = run / ${ lanes }u, word0 = run % ${ lanes }u * ${ words }u;
    ${ m_lines | indent(4) }
    const uint g = run % ${ blocks * lanes }u;
//% endif
    float x[${ elements }], most = 0.0;
    ${ x_lines | indent(4) }
    [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) most = max(most, ${ "is_nan(x[j]) ? 0.0 : " if exact }abs(x[j]));
//% for mask in masks
    most = max(most, subgroupShuffleXor(most, ${ mask }u));
//% endfor
    const float scale = most / 127.0;
${ rounded("byte_of" if exact) }
}
//% endmacro
//% if kept and spends
    {
        const uint block = lane / ${ lanes }u, word0 = lane % ${ lanes }u * ${ words }u;
        float x[${ elements }];
        ${ x_lines | indent(8) }
    ${ bits() | indent(4) }
    }
//% elif spends
    // All are asked for before the first is rounded.
    float asked[${ rounds }][${ elements }];
    [[unroll]] for (uint i = 0u; i < ${ rounds }u; ++i) {
        const uint run = min(lane + i * ${ workgroup }u, ${ m * blocks * lanes - 1 }u), m = run / ${ blocks * lanes }u, g = run % ${ blocks * lanes }u;
        float x[${ elements }];
        ${ m_lines | indent(8) }
        ${ x_lines | indent(8) }
        [[unroll]] for (uint j = 0u; j < ${ elements }u; ++j) asked[i][j] = x[j];
    }
    [[unroll]] for (uint i = 0u; i < ${ rounds }u; ++i) {
        const uint run = lane + i * ${ workgroup }u, block = run / ${ lanes }u, word0 = run % ${ lanes }u * ${ words }u;
        if (run >= ${ m * blocks * lanes }u) continue;
        float x[${ elements }] = asked[i];
    ${ bits() | indent(4) }
    }
//% else
    // Added to 1.5 * 2^23, whole numbers are in the low bits, halves rounded to even. What is larger by one part in 2^23 goes up from a half: where that is
    // another number, as where one is infinite or NaN (which has this bit), the subgroup does it again as exactly as it takes.
    uint doubt = 0u;
    ${ runs(false) | indent(4) }
    if (subgroupAny(doubt != 0u)) {
        ${ runs(true) | indent(8) }
    }
//% endif
    barrier();
//% endif
//% for s in segments
    if (${ s.here }) {
        const uint column0 = ${ s.column0 };
        ${ s.prelude | indent(8) }
        // ${ s.comment }
//% if s.along
        const uint c = ${ s.column }, n = min(column0 + c, ${ s.last });
        float acc[${ s.accs }];
        [[unroll]] for (uint j = 0u; j < ${ s.accs }u; ++j) acc[j] = 0.0;
        for (uint along0 = 0u; along0 < ${ s.steps }; along0 += ${ s.depth }u) {
            [[unroll]] for (uint s = 0u; s < ${ s.depth }u; ++s) {
                ${ step(s) | indent(16) }
            }
        }
        ${ reduce(s, "") | indent(8) }
//% else
//% if not s.steps and not first
        const uint item = ${ s.item };
//% if m == 1
        ${ activations(s) | indent(8) }
//% endif
//% endif
//% if s.once
        ${ pass(s, "pass", s.together == 1) | indent(8) }
//% else
        const uint passes = ${ s.passes };
//% if s.together == 1
        ${ "[[unroll]] " if s.written }for (uint pass = 0u; pass < passes; ++pass) {
//% else
        for (uint pass0 = 0u; pass0 < passes; pass0 += ${ s.together }u) {
//% endif
            ${ pass(s, "u", s.together == 1) | indent(12) }
        }
//% endif
//% endif
        ${ s.end | indent(8) }
//% if not loop.last
        return;
//% endif
    }
//% endfor
}
