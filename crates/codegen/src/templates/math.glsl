// Meanings that GLSL leaves open, as the interpreter defines them. Only what a kernel calls is included.
//% if "is_nan" in used
// Bit by bit: drivers may assume that no float is NaN, and then isnan() is false.
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
//% if double
bool is_nan(double x) {
    uvec2 u = unpackDouble2x32(x);
    return (u.y & 0x7fffffffu) + (u.x != 0u ? 1u : 0u) > 0x7ff00000u;
}
//% endif
//% endif
//% if "number" in used
float number(float x) { return is_nan(x) ? 0.0 : x; }
//% if double
double number(double x) { return is_nan(x) ? 0.0lf : x; }
//% endif
//% endif
//% if "odd_int" in used
// Integers that are converted to bf16: rounded to odd where an f32 is not exact, so that the result is rounded once.
float odd_int(uint x) { return float(x < 0x1000000u ? x : (x & 0xffffff00u) | ((x & 0xffu) != 0u ? 0x100u : 0u)); }
float odd_int(int x) { float rounded = odd_int(uint(x < 0 ? -x : x)); return x < 0 ? -rounded : rounded; }
//% if long
float odd_int(int64_t x) {
    uint64_t size = uint64_t(x < 0l ? -x : x);
    uint high = uint(size >> 32), low = uint(size);
    // Bits that do not show beside the upper 24 leave one that says that they were there.
    float rounded = high == 0u ? odd_int(low)
        : high < 0x10000u ? float((size >> 24 << 24) | ((low & 0xffffffu) != 0u ? 0x1000000ul : 0ul))
        : float((high & 0xffffff00u) | (((high & 0xffu) | low) != 0u ? 0x100u : 0u)) * 4294967296.0;
    return x < 0l ? -rounded : rounded;
}
//% endif
//% endif
//% if "to_uint" in used
uint to_uint(float x) { return is_nan(x) || x <= 0.0 ? 0u : (x >= 4294967040.0 ? (x > 4294967040.0 ? 0xffffffffu : 4294967040u) : uint(x)); }
//% if double
uint to_uint(double x) { return is_nan(x) || x <= 0.0lf ? 0u : (x >= 4294967295.0lf ? 0xffffffffu : uint(x)); }
//% endif
//% endif
//% if "to_int" in used
int to_int(float x) { return is_nan(x) ? 0 : (x >= 2147483648.0 ? 2147483647 : (x < -2147483648.0 ? int(0x80000000u) : int(x))); }
//% if double
int to_int(double x) { return is_nan(x) ? 0 : (x >= 2147483647.0lf ? 2147483647 : (x <= -2147483648.0lf ? int(0x80000000u) : int(x))); }
//% endif
//% endif
//% if "to_long" in used
const int64_t LONG_MIN = int64_t(0x8000000000000000ul);
int64_t to_long(float x) { return is_nan(x) ? 0l : (x >= 9223372036854775808.0 ? ~LONG_MIN : (x < -9223372036854775808.0 ? LONG_MIN : int64_t(x))); }
//% if double
int64_t to_long(double x) { return is_nan(x) ? 0l : (x >= 9223372036854775808.0lf ? ~LONG_MIN : (x < -9223372036854775808.0lf ? LONG_MIN : int64_t(x))); }
//% endif
//% endif
//% if "odd_of" in used
// To f32 with an odd last bit where inexact: rounding that to fewer bits equals rounding once (Boldo and Melquiond).
float odd_of(double x) {
    float f = float(x);
    if (is_nan(x) || isinf(f) || double(f) == x) return f;
    uint u = floatBitsToUint(f);
    return uintBitsToFloat((abs(double(f)) > abs(x) ? u - 1u : u) | 1u);
}
//% endif
//% if "div_by" in used
// x / d for any x, by multiplication: d is the multiplier and the shifts of its inverse.
uint div_by(uint x, uvec2 d) {
    uint high, low;
    umulExtended(x, d.x, high, low);
    return (high + ((x - high) >> (d.y & 1u))) >> (d.y >> 1);
}
//% endif
//% if "sort_key" in used
// Unsigned integers in the order of the floats: negatives reversed, below the rest; NaN on top; -0 is 0.
uint sort_key(float x) {
    uint u = floatBitsToUint(x == 0.0 ? 0.0 : x);
    return is_nan(x) ? 0xffffffffu : (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
}
//% if double
uint64_t sort_key(double x) {
    uint64_t u = doubleBitsToUint64(x == 0.0lf ? 0.0lf : x), top = 0x8000000000000000ul;
    return is_nan(x) ? 0xfffffffffffffffful : (u & top) != 0ul ? ~u : u | top;
}
//% endif
//% endif
//% if "sign_of" in used
float sign_of(float x) { return is_nan(x) ? x : sign(x); }
//% if double
double sign_of(double x) { return is_nan(x) ? x : sign(x); }
//% endif
//% endif
//% if "round_of" in used
// Halves away from zero; adding 0.5 would round 0.49999997 up.
float round_of(float x) { float t = trunc(x); return abs(x - t) >= 0.5 ? t + sign(x) : t; }
//% if double
double round_of(double x) { double t = trunc(x); return abs(x - t) >= 0.5lf ? t + sign(x) : t; }
//% endif
//% endif
//% if "low_byte" in used
// A word whose lowest byte is a float of at most 127 in magnitude, rounded to a whole number, halves away from zero; any byte where the float is NaN
// or infinite. Added to 1.5 * 2^23 it is rounded to even. A half that went down left an even number; there the float next to it away from zero goes up.
// Where the number is odd, it stays: the float next to it may be a half that goes up. (No difference of floats that is 0 but for rounding:
// drivers take it for 0.)
uint low_byte(float x) {
    precise float even = x + 12582912.0, up = uintBitsToFloat(floatBitsToUint(x) + 1u) + 12582912.0;
    return (floatBitsToUint(even) & 1u) == 0u ? floatBitsToUint(up) : floatBitsToUint(even);
}
//% endif
//% if "byte_of" in used
// The same as a number; 0 for NaN.
int byte_of(float x) { return is_nan(x) ? 0 : int(low_byte(x) << 24) >> 24; }
//% endif
//% if "min_of" in used
float min_of(float a, float b) { return is_nan(a) || is_nan(b) ? a + b : min(a, b); }
//% if double
double min_of(double a, double b) { return is_nan(a) || is_nan(b) ? a + b : min(a, b); }
//% endif
//% endif
//% if "max_of" in used
float max_of(float a, float b) { return is_nan(a) || is_nan(b) ? a + b : max(a, b); }
//% if double
double max_of(double a, double b) { return is_nan(a) || is_nan(b) ? a + b : max(a, b); }
//% endif
//% endif
//% if "div_of" in used
uint div_of(uint a, uint b) { return b == 0u ? 0u : a / b; }
int div_of(int a, int b) { return b == 0 ? 0 : (b == -1 ? -a : a / b); }
//% if long
int64_t div_of(int64_t a, int64_t b) { return b == 0l ? 0l : (b == -1l ? -a : a / b); }
//% endif
//% endif
//% if "rem_of" in used
uint rem_of(uint a, uint b) { return b == 0u ? 0u : a % b; }
int rem_of(int a, int b) { return b == 0 || b == -1 ? 0 : a - b * (a / b); }
//% if long
int64_t rem_of(int64_t a, int64_t b) { return b == 0l || b == -1l ? 0l : a - b * (a / b); }
//% endif
// Exact up to quotients of 2^24: the rounded quotient may be one off, which shows in sign or size of the rest.
float rem_of(float a, float b) {
    if (isinf(b) && !isinf(a)) return a;
    float r = fma(-b, trunc(a / b), a), step = a < 0.0 ? -abs(b) : abs(b);
    if (r != 0.0 && (r < 0.0) != (step < 0.0)) return r + step;
    return abs(r) >= abs(b) ? r - step : r;
}
//% if double
double rem_of(double a, double b) {
    if (isinf(b) && !isinf(a)) return a;
    double r = fma(-b, trunc(a / b), a), step = a < 0.0lf ? -abs(b) : abs(b);
    if (r != 0.0lf && (r < 0.0lf) != (step < 0.0lf)) return r + step;
    return abs(r) >= abs(b) ? r - step : r;
}
//% endif
//% endif
//% if "pow_of" in used
// pow() is undefined for negative bases; there the power exists for whole exponents only.
float pow_of(float x, float y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (is_nan(x) || is_nan(y)) return x + y;
    if (x == -1.0 && isinf(y)) return 1.0;
    bool whole = trunc(y) == y, odd = whole && mod(y, 2.0) == 1.0, negative = floatBitsToInt(x) < 0;
    float p = x == 0.0 ? (y > 0.0 ? 0.0 : uintBitsToFloat(0x7f800000u)) : pow(abs(x), y);
    if (x < 0.0 && !isinf(x) && !whole) return uintBitsToFloat(0x7fc00000u);
    return negative && odd ? -p : p;
}
//% endif
//% if "expm1_of" in used
// Below 1/2 the Maclaurin series to x^8 (next term < 1.1e-8 of x), where exp(x) - 1 would cancel.
float expm1_of(float x) {
    if (!(abs(x) < 0.5)) return exp(x) - 1.0;
    float p = 1.0 / 40320.0;
    p = 1.0 / 5040.0 + x * p;
    p = 1.0 / 720.0 + x * p;
    p = 1.0 / 120.0 + x * p;
    p = 1.0 / 24.0 + x * p;
    p = 1.0 / 6.0 + x * p;
    p = 0.5 + x * p;
    return x + x * x * p;
}
//% endif
//% if "log2_of" in used
float log2_of(float x) { return x > 0.0 ? log2(x) : uintBitsToFloat(x == 0.0 ? 0xff800000u : 0x7fc00000u); }
//% endif
//% if "log1p_of" in used
// ln(1 + x) = 2 atanh(x / (2 + x)), by its series to s^15 (next term < 1.7e-9 of the sum) where |s| <= 1/3.
float log1p_of(float x) {
    if (x <= -1.0 || is_nan(x)) return uintBitsToFloat(x == -1.0 ? 0xff800000u : 0x7fc00000u);
    if (x < -0.5 || x > 1.0) return log(1.0 + x);
    float s = x / (2.0 + x), t = s * s;
    float p = 1.0 / 15.0;
    p = 1.0 / 13.0 + t * p;
    p = 1.0 / 11.0 + t * p;
    p = 1.0 / 9.0 + t * p;
    p = 1.0 / 7.0 + t * p;
    p = 0.2 + t * p;
    p = 1.0 / 3.0 + t * p;
    return 2.0 * (s + s * t * p);
}
//% endif
//% if "rsqrt_of" in used
float rsqrt_of(float x) {
    return x > 0.0 ? inversesqrt(x) : uintBitsToFloat(x == 0.0 ? 0x7f800000u | (floatBitsToUint(x) & 0x80000000u) : 0x7fc00000u);
}
//% if double
double rsqrt_of(double x) { return 1.0lf / sqrt(x); }
//% endif
//% endif
//% if "tan_of" in used
// Reduction by pi/2 as for sine, then the continued fraction of tan to its fifth level: error < 1e-8 of tan.
float tan_of(float x) {
    precise float n = roundEven(x * 0.63661977);
    precise float r = x - n * 1.5703125;
    r = r - n * 0.00048375129699707031;
    r = r - n * 7.54979e-8;
    float s = r * r, p = r * (945.0 + s * (s - 105.0)), q = 945.0 + s * (15.0 * s - 420.0);
    return fract(0.5 * n) == 0.0 ? p / q : -q / p;
}
//% endif
//% if "atan_of" in used
// Devices promise 4096 units in the last place only. Reduced below tan(pi/8), there the series to x^19 (next
// term < 1e-9 of x).
float atan_of(float x) {
    float a = abs(x), z = a, base = 0.0;
    if (a > 2.4142135) {
        z = isinf(a) ? 0.0 : -1.0 / a;
        base = 1.5707964;
    } else if (a > 0.41421356) {
        z = (a - 1.0) / (a + 1.0);
        base = 0.78539816;
    }
    float s = z * z, p = -1.0 / 19.0;
    p = 1.0 / 17.0 + s * p;
    p = -1.0 / 15.0 + s * p;
    p = 1.0 / 13.0 + s * p;
    p = -1.0 / 11.0 + s * p;
    p = 1.0 / 9.0 + s * p;
    p = -1.0 / 7.0 + s * p;
    p = 0.2 + s * p;
    p = -1.0 / 3.0 + s * p;
    float y = base + (z + z * s * p);
    return is_nan(x) ? x : (x < 0.0 ? -y : y);
}
//% endif
//% if "asin_of" in used
// Half the angle has the tangent x / (1 + sqrt(1 - x^2)).
float asin_of(float x) {
    if (!(abs(x) <= 1.0)) return uintBitsToFloat(0x7fc00000u);
    return 2.0 * atan_of(x / (1.0 + sqrt((1.0 - x) * (1.0 + x))));
}
//% endif
//% if "acos_of" in used
// Half the angle has the tangent sqrt((1 - x) / (1 + x)); there is no cancellation near 1.
float acos_of(float x) {
    float a = abs(x);
    if (!(a <= 1.0)) return uintBitsToFloat(0x7fc00000u);
    float y = 2.0 * atan_of(sqrt((1.0 - a) / (1.0 + a)));
    return x < 0.0 ? 3.1415927 - y : y;
}
//% endif
//% if "sinh_of" in used
// Below 1 the Maclaurin series to x^11 (next term < 2e-10 of x); beyond 88 the exponential alone would overflow first.
float sinh_of(float x) {
    float a = abs(x), s = x * x;
    if (a < 1.0) {
        float p = 1.0 / 39916800.0;
        p = 1.0 / 362880.0 + s * p;
        p = 1.0 / 5040.0 + s * p;
        p = 1.0 / 120.0 + s * p;
        p = 1.0 / 6.0 + s * p;
        return x + x * s * p;
    }
    // e^a / 2 with the half in the exponent, since e^a overflows first.
    float h = exp(a > 88.0 ? a - 0.6931472 : a);
    float y = a > 88.0 ? h : 0.5 * (h - 1.0 / h);
    return is_nan(x) ? x : (x < 0.0 ? -y : y);
}
//% endif
//% if "cosh_of" in used
float cosh_of(float x) {
    float a = abs(x), h = exp(a > 88.0 ? a - 0.6931472 : a);
    return is_nan(x) ? x : (a > 88.0 ? h : 0.5 * (h + 1.0 / h));
}
//% endif
//% if "shl_of" in used
uint shl_of(uint a, uint b) { return b < 32u ? a << b : 0u; }
int shl_of(int a, int b) { return uint(b) < 32u ? a << b : 0; }
//% if long
int64_t shl_of(int64_t a, int64_t b) { return b >= 0l && b < 64l ? a << int(b) : 0l; }
//% endif
//% endif
//% if "shr_of" in used
uint shr_of(uint a, uint b) { return b < 32u ? a >> b : 0u; }
int shr_of(int a, int b) { return b < 0 ? 0 : a >> min(b, 31); }
//% if long
int64_t shr_of(int64_t a, int64_t b) { return b < 0l ? 0l : a >> int(min(b, 63l)); }
//% endif
//% endif
//% if "philox_of" in used
// Philox4x32-10 (Salmon et al., SC'11).
uint philox_of(uint counter, uint key, uint stream) {
    uvec4 x = uvec4(counter >> 2, stream, 0u, 0u);
    uvec2 k = uvec2(key, 0u);
    for (uint i = 0u; i < 10u; ++i) {
        uint high0, low0, high1, low1;
        umulExtended(0xd2511f53u, x.x, high0, low0);
        umulExtended(0xcd9e8d57u, x.z, high1, low1);
        x = uvec4(high1 ^ x.y ^ k.x, low1, high0 ^ x.w ^ k.y, low0);
        k += uvec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return x[counter & 3u];
}
//% endif
//% if "tanh_of" in used
// From 1/4 on 1 - 2 / (e^2x + 1), which is +-1 where e^2x is infinite or 0; below, where that cancels, the Maclaurin
// series to x^9 (next term < 9e-9 of x). Fewer instructions than drivers have for tanh(), which also want NaN and
// large arguments kept away.
float tanh_of(float x) {
    float s = x * x;
    return s < 0.0625 ? x * (1.0 + s * (-0.33333334 + s * (0.13333334 + s * (-0.053968254 + s * 0.021869488))))
        : 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
}
//% endif
//% if "erf_of" in used
// Below 1 the Maclaurin series to x^17 (next term < 2e-8 of x); above, Abramowitz & Stegun 7.1.26,
// absolute error 1.5e-7.
float erf_of(float x) {
    float a = abs(x), s = x * x;
    if (a < 1.0) {
        float p = 1.0 / 685440.0;
        p = -1.0 / 75600.0 + s * p;
        p = 1.0 / 9360.0 + s * p;
        p = -1.0 / 1320.0 + s * p;
        p = 1.0 / 216.0 + s * p;
        p = -1.0 / 42.0 + s * p;
        p = 0.1 + s * p;
        p = -1.0 / 3.0 + s * p;
        return 1.1283791670955126 * (x + x * s * p);
    }
    float t = 1.0 / (1.0 + 0.3275911 * a);
    float q = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    float y = 1.0 - q * exp(-s);
    return is_nan(x) ? x : (x < 0.0 ? -y : y);
}
//% endif
//% if "sin_of" in used or "cos_of" in used
// Reduction by 2 pi in three parts (Cody and Waite): devices promise sine only in [-pi, pi].
// The products with the first parts are exact; drivers may add the parts up unless all is `precise`, which fma() is not.
float reduced(float x) {
    precise float n = roundEven(x * 0.15915494);
    precise float r = x - n * 6.28125;
    r = r - n * 0.0019350051879882812;
    r = r - n * 3.019916e-7;
    return r;
}
//% endif
//% if "sin_of" in used
float sin_of(float x) { return sin(reduced(x)); }
//% endif
//% if "cos_of" in used
float cos_of(float x) { return cos(reduced(x)); }
//% endif
//% if "round_f16" in used
// To nearest even, in integers: drivers take packing and unpacking for nothing. Below 2^-14 the steps are 2^-24; from
// 65520 on the nearest is infinity.
float round_f16(float x) {
    uint u = floatBitsToUint(x), a = u & 0x7fffffffu;
    uint m = a < 0x38800000u ? floatBitsToUint(roundEven(uintBitsToFloat(a) * 16777216.0) * 5.9604644775390625e-8)
        : a < 0x477ff000u ? (a + 0xfffu + ((a >> 13) & 1u)) & 0xffffe000u
        : a > 0x7f800000u ? a : 0x7f800000u;
    return uintBitsToFloat((u & 0x80000000u) | m);
}
//% endif
//% if "round_bf16" in used
uint bits_bf16(float x) {
    uint u = floatBitsToUint(x);
    return is_nan(x) ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
float round_bf16(float x) { return uintBitsToFloat(bits_bf16(x) << 16); }
//% endif
//% if "value_f8" in used
// E4M3: NaN where all bits below the sign are 1; below 2^-6 units of 2^-9.
float value_f8(uint b) {
    uint u = b & 0x7fu;
    float x = u < 8u ? float(u) * 0.001953125 : uintBitsToFloat(u == 0x7fu ? 0x7fc00000u : (u + 960u) << 20);
    return (b & 0x80u) != 0u ? -x : x;
}
//% endif
//% if "round_f8" in used
// To nearest even; what is too large becomes 448.
uint bits_f8(float x) {
    uint s = (floatBitsToUint(x) >> 24) & 0x80u;
    if (is_nan(x)) return s | 0x7fu;
    float a = min(abs(x), 448.0);
    uint u = floatBitsToUint(a);
    return s | (a < 0.015625 ? uint(roundEven(a * 512.0)) : ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - 960u);
}
float round_f8(float x) { return value_f8(bits_f8(x)); }
//% endif
//% if "narrow_f8" in used
uint8_t narrow_f8(float x) { return uint8_t(bits_f8(x)); }
//% endif
//% if "narrow_i16" in used
int16_t narrow_i16(int x) { return int16_t(x); }
//% endif
//% if "narrow_f16" in used
float16_t narrow_f16(float x) { return float16_t(x); }
//% endif
//% if "narrow_bf16" in used
uint16_t narrow_bf16(float x) { return uint16_t(bits_bf16(x)); }
//% endif
//% if "narrow_u8" in used
uint8_t narrow_u8(uint x) { return uint8_t(x); }
//% endif
