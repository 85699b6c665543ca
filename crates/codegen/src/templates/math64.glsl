// Functions of double, which GLSL lacks: series to the last place but a few (2^-50 of the result, where no other
// bound stands).
//% if "pow2_of" in used or "split_of" in used
// ln 2 in two parts, of which the first has trailing zeros, so that its products with small integers are
// exact. Drivers add such parts up first unless products and differences are `precise`, which fma() is not. They
// are given as bits so that no compiler reads a long decimal one place off.
double ln2_high() { return packDouble2x32(uvec2(0xfee00000u, 0x3fe62e42u)); }
double ln2_low() { return packDouble2x32(uvec2(0x35793c76u, 0x3dea39efu)); }
//% endif
//% if "pow2_of" in used
// 2^n for n from -1022 to 1023.
double pow2_of(int n) { return packDouble2x32(uvec2(0u, uint(n + 1023) << 20)); }
// 2^n in two factors, so that results may be denormal.
double scaled(double x, int n) { return x * pow2_of(n / 2) * pow2_of(n - n / 2); }
// e^r by its series for |r| < 0.35; the next term is 4e-18.
double exp_near_0(double r) {
    double p = 1.0lf;
    for (int k = 13; k > 0; --k) p = 1.0lf + r * p / double(k);
    return p;
}
double exp_of(double x) {
    if (is_nan(x)) return x;
    double a = clamp(x, -750.0lf, 710.0lf), n = roundEven(a * 1.4426950408889634lf);
    precise double r = a - n * ln2_high();
    r = r - n * ln2_low();
    return scaled(exp_near_0(r), int(n));
}
//% endif
//% if "exp2_of" in used
double exp2_of(double x) {
    if (is_nan(x)) return x;
    double a = clamp(x, -1080.0lf, 1024.0lf), n = roundEven(a);
    return scaled(exp_near_0((a - n) * 0.6931471805599453lf), int(n));
}
//% endif
//% if "expm1_of" in used
double expm1_of(double x) {
    if (!(abs(x) < 0.5lf)) return exp_of(x) - 1.0lf;
    double p = 1.0lf;
    for (int k = 16; k > 1; --k) p = 1.0lf + x * p / double(k);
    return x * p;
}
//% endif
//% if "split_of" in used
// ln((1 + s) / (1 - s)) by its series for |s| < 0.172; the next term is 6e-19 of the sum.
double log_ratio(double s) {
    double t = s * s, p = 0.0lf;
    for (int k = 21; k > 1; k -= 2) p = t * (1.0lf / double(k) + p);
    return 2.0lf * (s + s * p);
}
// Logarithm of the mantissa, between sqrt(1/2) and sqrt(2), and the exponent of a positive number.
double split_of(double x, out double n) {
    bool denormal = x < 2.2250738585072014e-308lf;
    uvec2 bits = unpackDouble2x32(denormal ? x * 18014398509481984.0lf : x);
    double m = packDouble2x32(uvec2(bits.x, (bits.y & 0xfffffu) | 0x3ff00000u));
    n = double(int(bits.y >> 20) - 1023 - (denormal ? 54 : 0));
    if (m > 1.4142135623730951lf) {
        m *= 0.5lf;
        n += 1.0lf;
    }
    return log_ratio((m - 1.0lf) / (m + 1.0lf));
}
double log_of(double x) {
    if (!(x > 0.0lf)) return packDouble2x32(uvec2(0u, x == 0.0lf ? 0xfff00000u : 0x7ff80000u));
    if (isinf(x)) return x;
    double n, y = split_of(x, n);
    precise double z = n * ln2_low() + y;
    z = n * ln2_high() + z;
    return z;
}
//% endif
//% if "log2_of" in used
double log2_of(double x) {
    if (!(x > 0.0lf) || isinf(x)) return log_of(x);
    double n, y = split_of(x, n);
    return n + y * 1.4426950408889634lf;
}
//% endif
//% if "log1p_of" in used
double log1p_of(double x) { return abs(x) < 0.25lf ? log_ratio(x / (2.0lf + x)) : log_of(1.0lf + x); }
//% endif
//% if "pow_of" in used
// The error is |y ln x| * 2^-52 of the result: 2e-13 at the ends of the range.
double pow_of(double x, double y) {
    if (y == 0.0lf || x == 1.0lf) return 1.0lf;
    if (is_nan(x) || is_nan(y)) return x + y;
    if (x == -1.0lf && isinf(y)) return 1.0lf;
    bool whole = trunc(y) == y, odd = whole && abs(y) < 9007199254740992.0lf && fract(0.5lf * y) != 0.0lf;
    bool negative = (unpackDouble2x32(x).y >> 31) != 0u;
    if (x < 0.0lf && !isinf(x) && !whole) return packDouble2x32(uvec2(0u, 0x7ff80000u));
    double p = exp_of(y * log_of(abs(x)));
    return negative && odd ? -p : p;
}
//% endif
//% if "quarter_of" in used
// The angle less its nearest quarter turns (Cody and Waite), and their number modulo 4. Exact to 2^-50 for angles
// below 2^20 quarter turns.
double quarter_of(double x, out int quarter) {
    double n = roundEven(x * 0.6366197723675814lf);
    precise double r = x - n * packDouble2x32(uvec2(0x54400000u, 0x3ff921fbu));
    r = r - n * packDouble2x32(uvec2(0x1a600000u, 0x3dd0b461u));
    r = r - n * packDouble2x32(uvec2(0x2e037073u, 0x3ba3198au));
    quarter = int(n - 4.0lf * floor(0.25lf * n));
    return r;
}
double sin_near_0(double r) {
    double p = 1.0lf;
    for (int k = 9; k > 0; --k) p = 1.0lf - r * r * p / double(2 * k * (2 * k + 1));
    return r * p;
}
double cos_near_0(double r) {
    double p = 1.0lf;
    for (int k = 10; k > 0; --k) p = 1.0lf - r * r * p / double(2 * k * (2 * k - 1));
    return p;
}
double turned(double r, int quarter) {
    double y = (quarter & 1) == 0 ? sin_near_0(r) : cos_near_0(r);
    return (quarter & 2) == 0 ? y : -y;
}
double sin_of(double x) { int q; double r = quarter_of(x, q); return turned(r, q); }
double cos_of(double x) { int q; double r = quarter_of(x, q); return turned(r, q + 1); }
double tan_of(double x) {
    int q;
    double r = quarter_of(x, q), s = sin_near_0(r), c = cos_near_0(r);
    return (q & 1) == 0 ? s / c : -c / s;
}
//% endif
//% if "atan_of" in used
// Reduced below tan(pi/8), there the series; the next term is 2e-18 of the angle.
double atan_of(double x) {
    double a = abs(x), z = a, base = 0.0lf;
    if (a > 2.414213562373095lf) {
        z = isinf(a) ? 0.0lf : -1.0lf / a;
        base = 1.5707963267948966lf;
    } else if (a > 0.41421356237309503lf) {
        z = (a - 1.0lf) / (a + 1.0lf);
        base = 0.7853981633974483lf;
    }
    double s = z * z, p = 0.0lf;
    for (int k = 43; k > 1; k -= 2) p = -s * (1.0lf / double(k) + p);
    double y = base + (z + z * p);
    return is_nan(x) ? x : (x < 0.0lf ? -y : y);
}
double asin_of(double x) {
    if (!(abs(x) <= 1.0lf)) return packDouble2x32(uvec2(0u, 0x7ff80000u));
    return 2.0lf * atan_of(x / (1.0lf + sqrt((1.0lf - x) * (1.0lf + x))));
}
double acos_of(double x) {
    double a = abs(x);
    if (!(a <= 1.0lf)) return packDouble2x32(uvec2(0u, 0x7ff80000u));
    double y = 2.0lf * atan_of(sqrt((1.0lf - a) / (1.0lf + a)));
    return x < 0.0lf ? 3.141592653589793lf - y : y;
}
//% endif
//% if "sinh_of" in used
double sinh_of(double x) {
    double a = abs(x), e = expm1_of(min(a, 700.0lf)), h = exp_of(0.5lf * a);
    precise double large = 0.5lf * h;
    large = large * h;
    double y = a > 700.0lf ? large : 0.5lf * (e + e / (e + 1.0lf));
    return is_nan(x) ? x : (x < 0.0lf ? -y : y);
}
//% endif
//% if "cosh_of" in used
double cosh_of(double x) {
    double a = abs(x), h = exp_of(a > 700.0lf ? 0.5lf * a : a);
    precise double large = 0.5lf * h;
    large = large * h;
    return is_nan(x) ? x : (a > 700.0lf ? large : 0.5lf * (h + 1.0lf / h));
}
//% endif
//% if "tanh_of" in used
double tanh_of(double x) {
    double e = expm1_of(2.0lf * min(abs(x), 22.0lf)), y = e / (e + 2.0lf);
    return is_nan(x) ? x : (x < 0.0lf ? -y : y);
}
//% endif
//% if "erf_of" in used
// Below 3 the series of DLMF 7.6.2, above the continued fraction 7.9.1.
double erf_of(double x) {
    double a = abs(x), y = 1.0lf;
    if (a < 3.0lf) {
        double term = a, sum = a;
        for (int n = 1; n < 70; ++n) {
            term *= 2.0lf * a * a / double(2 * n + 1);
            sum += term;
        }
        y = 1.1283791670955126lf * exp_of(-a * a) * sum;
    } else if (a < 6.0lf) {
        double f = a;
        for (int k = 60; k > 0; --k) f = a + 0.5lf * double(k) / f;
        y = 1.0lf - exp_of(-a * a) * 0.5641895835477563lf / f;
    }
    return is_nan(x) ? x : (x < 0.0lf ? -y : y);
}
//% endif
