/* pmath_impl.h -- the bodies of the functions in pmath.h; only pmath.h includes this file.
 *
 * Every float function is straight-line code of + - * /, comparisons and integer operations on the
 * bits, with selects instead of branches. So gcc and clang can vectorise a loop over it with any
 * width, and no width changes a bit. The polynomials are Chebyshev fits, written as hexadecimal
 * floats; their relative error is below a tenth of the result's last place.
 *
 * To round a number to an integer, 1.5 * 2^23 (1.5 * 2^52 for double) is added and subtracted: at
 * that size the last place of a float is 1. The low bits of the sum also hold the integer. */
#pragma once

#define PM_ROUND_F 0x1.8p23f
#define PM_ROUND   0x1.8p52

ROW_FN uint32_t pm_bits_f(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ROW_FN float pm_from_bits_f(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ROW_FN uint64_t pm_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ROW_FN double pm_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* pm_from_u32 -- w as a double, exactly: 2^52 + w has the bits of 2^52 with w in the low half. (The
 * plain conversion has no vector form below AVX-512.) */
ROW_FN double pm_from_u32(uint32_t w)
{
    return pm_from_bits(0x4330000000000000 | (uint64_t)w) - 0x1p52;
}

/* pm_exp_fraction -- exp(r), where exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2 and
 * exp(r) = 1 + r + r^2 * poly(r). ln 2 is subtracted in two parts; n times the first is exact (15 +
 * 8 bits). If round_by is PM_ROUND_F + k, the low bits of *shifted hold n + k. */
ROW_FN float pm_exp_fraction(float x, float round_by, float *shifted)
{
    *shifted = x * 0x1.715476p0f + round_by;
    float n = *shifted - round_by;
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;

    float p = 0x1.a12a42p-13f;
    p = p * r + 0x1.6d4920p-10f;
    p = p * r + 0x1.1110e0p-7f;
    p = p * r + 0x1.5554e4p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    return 1.0f + (r + (r * r) * p);
}

ROW_FN float pm_expf(float x)
{
    /* Beyond these limits the result is +inf or 0 anyway. A NaN passes both unchanged. */
    float a = x > 89.0f ? 89.0f : x, shifted;
    a = a < -104.0f ? -104.0f : a;
    float y = pm_exp_fraction(a, PM_ROUND_F, &shifted);

    /* times 2^n in two halves; only the second can round: to a denormal, 0 or infinity */
    uint32_t whole = pm_bits_f(shifted) - pm_bits_f(PM_ROUND_F);
    int32_t half = (int32_t)whole >> 1;
    uint32_t rest = whole - (uint32_t)half;
    y = y * pm_from_bits_f(((uint32_t)half + 127) << 23) * pm_from_bits_f((rest + 127) << 23);
    return x == x ? y : x;
}

/* 2^(n+64) exp(r) is a normal number for -104 <= x <= 40, so adding n + 64 to the exponent bits
 * of exp(r) gives it. Only the multiplication by 2^-64 can round, as in pm_expf. */
ROW_FN float pm_expf_upto40(float x)
{
    float a = x < -104.0f ? -104.0f : x, shifted;
    float y = pm_exp_fraction(a, PM_ROUND_F + 64.0f, &shifted);
    y = pm_from_bits_f(pm_bits_f(y) + (pm_bits_f(shifted) << 23)) * 0x1p-64f;
    return x == x ? y : x;
}

/* log(x) = e ln 2 + log(m), m in [sqrt(1/2), sqrt(2)). Let f = m - 1 and s = f / (2 + f). Then
 * log(1+f) = 2 atanh(s) = 2s + s R(s^2) and, since 2s = f - s f, this is f - (h - s (h + R)) with h
 * = f^2/2. The large term f is exact, and everything that is rounded is small beside it. */
ROW_FN float pm_logf(float x)
{
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x; /* denormals have no leading one in the bits */
    float bias = x < 0x1p-126f ? 127.0f + 23.0f : 127.0f;
    uint32_t bits = pm_bits_f(scaled) + (0x3f800000u - 0x3f3504f3u); /* 1 - sqrt(1/2) */
    float e = (float)(int32_t)(bits >> 23) - bias;
    float f = pm_from_bits_f((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;

    float s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
    float p = 0x1.ddced8p-3f;
    p = p * z + 0x1.245c44p-2f;
    p = p * z + 0x1.9999ecp-2f;
    p = p * z + 0x1.555556p-1f;
    float y = e * 0x1.62e4p-1f - ((h - (s * (h + z * p) + e * 0x1.7f7d1cp-20f)) - f);

    y = x == pm_from_bits_f(0x7f800000) ? x : y;
    y = x == 0.0f ? -pm_from_bits_f(0x7f800000) : y;
    y = x < 0.0f ? pm_from_bits_f(0x7fc00000) : y;
    return x == x ? y : x;
}

/* With a = |x| and z = a^2: a + a z poly(z) below a = 0.625, else 1 - 2 / (exp(2a) + 1); then x's
 * sign. Both are computed and one is taken. The second is exactly 1 from 2a = 18.1 on, so exp need
 * not go beyond 30; up to there 2^n can be multiplied in by adding n to the exponent bits. */
ROW_FN float pm_tanhf(float x)
{
    uint32_t sign = pm_bits_f(x) & 0x80000000u;
    float a = pm_from_bits_f(pm_bits_f(x) ^ sign), z = a * a;
    float p = 0x1.266360p-9f;
    p = p * z - 0x1.1007acp-7f;
    p = p * z + 0x1.647206p-6f;
    p = p * z - 0x1.ba0548p-5f;
    p = p * z + 0x1.1110e0p-3f;
    p = p * z - 0x1.555556p-2f;
    float near = a + a * (z * p);
    float twice = 2.0f * a > 30.0f ? 30.0f : 2.0f * a, shifted;
    float e = pm_exp_fraction(twice, PM_ROUND_F, &shifted);
    e = pm_from_bits_f(pm_bits_f(e) + (pm_bits_f(shifted) << 23));
    float far = 1.0f - 2.0f / (e + 1.0f);
    float y = pm_from_bits_f(pm_bits_f(a < 0.625f ? near : far) | sign);
    return x == x ? y : x;
}

/* pm_log_positive -- log of a positive normal finite double, arranged as in pm_logf. philox.c
 * vectorises this one; pm_log adds the special cases. */
ROW_FN double pm_log_positive(double x)
{
    uint64_t bits = pm_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = pm_from_u32((uint32_t)(bits >> 52)) - 1023.0;
    double f = pm_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;

    double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
    double p = 0x1.0c039c499cc37p-3;
    p = p * z + 0x1.0fbe95d7158cbp-3;
    p = p * z + 0x1.3b1c355a8f7f5p-3;
    p = p * z + 0x1.745cf9048dd93p-3;
    p = p * z + 0x1.c71c720159177p-3;
    p = p * z + 0x1.2492492476cccp-2;
    p = p * z + 0x1.9999999999a38p-2;
    p = p * z + 0x1.5555555555555p-1;
    return e * 0x1.62e42fefa2p-1 - ((h - (s * (h + z * p) + e * 0x1.9ef35793c7673p-41)) - f);
}

ROW_FN double pm_log(double x)
{
    if (x != x || x == pm_from_bits(0x7ff0000000000000))
        return x;
    if (x < 0.0)
        return pm_from_bits(0x7ff8000000000000); /* NaN */
    if (x == 0.0)
        return -pm_from_bits(0x7ff0000000000000);
    if (x < 0x1p-1022) /* 52 ln 2 goes last: it is small beside the result, about -709 */
        return pm_log_positive(x * 0x1p52) - 0x1.205966f2b4f12p5;
    return pm_log_positive(x);
}

/* exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2; the series of exp(r) to r^13. */
ROW_FN double pm_exp(double x)
{
    const double shifted = x * 0x1.71547652b82fep0 + PM_ROUND, n = shifted - PM_ROUND;
    const double r = (x - n * 0x1.62e42fefa2p-1) - n * 0x1.9ef35793c7673p-41;
    double p = 0x1.6124613a86d09p-33;
    p = p * r + 0x1.1eed8eff8d898p-29;
    p = p * r + 0x1.ae64567f544e4p-26;
    p = p * r + 0x1.27e4fb7789f5cp-22;
    p = p * r + 0x1.71de3a556c734p-19;
    p = p * r + 0x1.a01a01a01a01ap-16;
    p = p * r + 0x1.a01a01a01a01ap-13;
    p = p * r + 0x1.6c16c16c16c17p-10;
    p = p * r + 0x1.1111111111111p-7;
    p = p * r + 0x1.5555555555555p-5;
    p = p * r + 0x1.5555555555555p-3;
    p = p * r + 0x1.0000000000000p-1;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * pm_from_bits((pm_bits(shifted) - pm_bits(PM_ROUND) + 1023) << 52);
}

/* pm_sincos_quadrant -- sine and cosine of quadrant * pi/2 + a; |a| may slightly exceed pi/4. */
ROW_FN void pm_sincos_quadrant(uint32_t quadrant, double a, double *s, double *c)
{
    double z = a * a;
    double p = 0x1.5e0a4fc16be58p-33;
    p = p * z - 0x1.ae6008d114485p-26;
    p = p * z + 0x1.71de37946ed6dp-19;
    p = p * z - 0x1.a01a019e820aep-13;
    p = p * z + 0x1.1111111110babp-7;
    p = p * z - 0x1.5555555555555p-3;
    double sine = a + a * (z * p);
    double q = -0x1.907cd8ff5ed8fp-37;
    q = q * z + 0x1.1eeb67d026ec6p-29;
    q = q * z - 0x1.27e4fa16cc2d1p-22;
    q = q * z + 0x1.a01a019f4ddfdp-16;
    q = q * z - 0x1.6c16c16c16963p-10;
    q = q * z + 0x1.5555555555555p-5;
    double cosine = 1.0 - (0.5 * z - (z * z) * q);

    /* quadrant 0: s, c   1: c, -s   2: -s, -c   3: -c, s */
    double s_abs = quadrant & 1 ? cosine : sine;
    double c_abs = quadrant & 1 ? sine : cosine;
    *s = quadrant & 2 ? -s_abs : s_abs;
    *c = (quadrant + 1) & 2 ? -c_abs : c_abs;
}

ROW_FN void pm_sincos_turns(double turns, double *s, double *c)
{
    double shifted = 4.0 * turns + PM_ROUND;
    double rest = turns - 0.25 * (shifted - PM_ROUND); /* exact, |rest| <= 1/8 */
    pm_sincos_quadrant((uint32_t)pm_bits(shifted), rest * 0x1.921fb54442d18p2, s, c);
}
