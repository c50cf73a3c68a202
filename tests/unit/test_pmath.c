/* test_pmath.c -- portable mathematics and the random numbers made with it: accuracy against libm,
 * and the same bits on every machine (a hash of many results is recorded here). */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/base/pmath.h"
#include "tests/unit/unit_lib.h"

/* ---- float functions: every exponent, both signs, 128 mantissas each ------------------------- */

enum { MANTISSAS = 128, SAMPLES = 512 * MANTISSAS };

static uint32_t sample_bits(uint32_t i)
{
    uint32_t mantissa = i % MANTISSAS == 0   ? 0
                        : i % MANTISSAS == 1 ? 0x7fffff
                                             : philox_u32(1, 1, i) & 0x7fffff;
    return (i / MANTISSAS) << 23 | mantissa;
}

/* Wrappers, because pmath.h has the functions inline. */
#define ONE(name)                                                                                  \
    static float name##_one(float x)                                                               \
    {                                                                                              \
        return pm_##name(x);                                                                       \
    }
ONE(expf)
ONE(logf)
ONE(tanhf)

/* ulps -- distance of y from the true value, in units of the true value's last place as a float.
 * The double reference is within one ulp of a double, which is 2^-29 of a float's. */
static double ulps(float y, double want)
{
    if (isnan(want))
        return isnan(y) ? 0 : INFINITY;
    if (fabs(want) >= 0x1.ffffffp127) /* halfway beyond FLT_MAX: rounds to infinity */
        return y == (want > 0 ? INFINITY : -INFINITY) ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    exponent = exponent < -125 ? -125 : exponent; /* denormals share the ulp of the least normal */
    return fabs((double)y - want) / ldexp(1.0, exponent - 24);
}

static double worst_ulps(float (*function)(float), double (*truth)(double))
{
    float (*volatile scalar)(float) = function; /* called once at a time, never vectorised */
    double worst = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        float x = pm_from_bits_f(sample_bits(i));
        double error = ulps(scalar(x), truth((double)x));
        worst = isnan(error) || error > worst ? error : worst;
    }
    return worst;
}

/* pmath.h states the bounds, measured over all 2^32 floats. */
TEST(test_float_accuracy)
{
    assert_true(worst_ulps(expf_one, exp) <= 0.96);
    assert_true(worst_ulps(logf_one, log) <= 0.84);
    assert_true(worst_ulps(tanhf_one, tanh) <= 1.34);
    /* the samples above rarely hit the interesting range of exp and tanh */
    double worst_exp = 0, worst_tanh = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        float x = -105.0f + 0.00097f * (float)i, t = 4e-5f * (float)i;
        worst_exp = fmax(worst_exp, ulps(expf_one(x), exp((double)x)));
        worst_tanh = fmax(worst_tanh, ulps(tanhf_one(t), tanh((double)t)));
    }
    assert_true(worst_exp <= 0.96);
    assert_true(worst_tanh <= 1.34);
}

TEST(test_float_specials)
{
    assert_true(pm_expf(INFINITY) == INFINITY && pm_expf(-INFINITY) == 0.0f);
    assert_true(pm_expf(0.0f) == 1.0f && pm_expf(-0.0f) == 1.0f);
    assert_true(pm_expf(88.7f) < INFINITY && pm_expf(88.8f) == INFINITY);
    assert_true(pm_expf(-103.9f) == 0x1p-149f && pm_expf(-104.0f) == 0.0f);
    assert_true(pm_expf(FLT_MAX) == INFINITY && pm_expf(-FLT_MAX) == 0.0f);
    assert_true(isnan(pm_expf(NAN)) && isnan(pm_logf(NAN)) && isnan(pm_tanhf(NAN)));
    assert_true(pm_logf(0.0f) == -INFINITY && pm_logf(-0.0f) == -INFINITY);
    assert_true(pm_logf(INFINITY) == INFINITY && pm_logf(1.0f) == 0.0f);
    assert_true(isnan(pm_logf(-1.0f)) && isnan(pm_logf(-INFINITY)));
    assert_true(pm_tanhf(INFINITY) == 1.0f && pm_tanhf(-INFINITY) == -1.0f);
    assert_true(pm_tanhf(30.0f) == 1.0f && pm_tanhf(0x1p-149f) == 0x1p-149f);
    assert_int_equal(pm_bits_f(pm_tanhf(-0.0f)), 0x80000000);
    for (uint32_t i = 0; i < SAMPLES / 2; i++) { /* odd, to the bit */
        float x = pm_from_bits_f(sample_bits(i));
        if (x == x)
            assert_int_equal(pm_bits_f(pm_tanhf(-x)), pm_bits_f(pm_tanhf(x)) ^ 0x80000000);
    }
}

/* pm_expf_upto40 has the bits of pm_expf: tested at the ends of its range and at every 61st float
 * in it. */
TEST(test_expf_upto40)
{
    const float edges[] = {40.0f,   0.0f,    -0.0f,    -0x1p-149f, -87.0f, -88.0f,    -103.9f,
                           -104.0f, -105.0f, -FLT_MAX, -INFINITY,  -1e30f, 0x1p-149f, -87.33655f};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        assert_int_equal(pm_bits_f(pm_expf_upto40(edges[i])), pm_bits_f(pm_expf(edges[i])));
    assert_true(isnan(pm_expf_upto40(NAN)) && isnan(pm_expf_upto40(-NAN)));
    size_t differ = 0;
    for (uint64_t bits = 0; bits <= 0xff800000u; bits += 61) {
        const float x = pm_from_bits_f((uint32_t)bits);
        if (x <= 40.0f)
            differ += pm_bits_f(pm_expf_upto40(x)) != pm_bits_f(pm_expf(x));
    }
    assert_int_equal(differ, 0);
}

/* Loops that compilers vectorise must give the bits of single calls, for any tail. */
TEST(test_loops_give_the_same_bits)
{
    float (*volatile exp_one)(float) = expf_one, (*volatile log_one)(float) = logf_one,
                     (*volatile tanh_one)(float) = tanhf_one;
    static float x[SAMPLES], e[SAMPLES], l[SAMPLES], t[SAMPLES];
    for (uint32_t i = 0; i < SAMPLES; i++)
        x[i] = pm_from_bits_f(sample_bits(i));
    for (size_t i = 1; i < SAMPLES; i++) /* from 1: unaligned, with a tail */
        e[i] = pm_expf(x[i]);
    for (size_t i = 1; i < SAMPLES; i++)
        l[i] = pm_logf(x[i]);
    for (size_t i = 1; i < SAMPLES; i++)
        t[i] = pm_tanhf(x[i]);
    for (size_t i = 1; i < SAMPLES; i++) {
        assert_int_equal(pm_bits_f(e[i]), pm_bits_f(exp_one(x[i])));
        assert_int_equal(pm_bits_f(l[i]), pm_bits_f(log_one(x[i])));
        assert_int_equal(pm_bits_f(t[i]), pm_bits_f(tanh_one(x[i])));
    }
}

/* ---- double functions ------------------------------------------------------------------------ */

/* pmath.h states the bounds, measured on 28 million logarithms and 10 million angles. The reference
 * is long double. If long double is no wider than double (it is wider on x86-64 and Linux aarch64),
 * the reference adds 1 ulp. */
TEST(test_double_accuracy)
{
    const double log_ulps = 0.86, cos_error = 1.5e-16, turns_error = 1.7e-16;
    const long double two_pi = 6.283185307179586476925286766559L;
    for (uint32_t i = 0; i < 2047 * 50; i++) {
        uint64_t mantissa = (uint64_t)philox_u32(2, 1, i) << 20 ^ philox_u32(2, 2, i);
        double x = pm_from_bits((uint64_t)(i / 50) << 52 | (mantissa & 0xfffffffffffff));
        long double want = logl((long double)x);
        int exponent;
        frexpl(want, &exponent);
        assert_true(fabsl(pm_log(x) - want) <= log_ulps * ldexpl(1.0L, exponent - 53));
    }
    for (uint32_t i = 0; i < 100000; i++) {
        double x = 64.0 * (philox_u32(2, 3, i) * 0x1p-31 - 1.0),
               turns = philox_u32(2, 4, i) * 0x1p-32;
        double s, c;
        pm_sincos_turns(turns, &s, &c);
        assert_true(fabsl(pm_cos(x) - cosl((long double)x)) <= cos_error);
        assert_true(fabsl(s - sinl(two_pi * turns)) <= turns_error);
        assert_true(fabsl(c - cosl(two_pi * turns)) <= turns_error);
    }
}

TEST(test_double_specials)
{
    double s, c;
    assert_true(pm_log(0.0) == -INFINITY && pm_log(-0.0) == -INFINITY && pm_log(1.0) == 0.0);
    assert_true(pm_log(INFINITY) == INFINITY && isnan(pm_log(-1.0)) && isnan(pm_log(NAN)));
    assert_true(pm_cos(0.0) == 1.0 && pm_cos(0x1.921fb54442d18p1) == -1.0); /* pi */
    const double want[4][2] = {{0, 1}, {1, 0}, {0, -1}, {-1, 0}};
    for (int quarter = 0; quarter < 4; quarter++) {
        pm_sincos_turns(quarter / 4.0, &s, &c);
        assert_true(s == want[quarter][0] && c == want[quarter][1]);
    }
}

/* ---- Philox ---------------------------------------------------------------------------------- */

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
TEST(test_philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        const uint32_t *c = known[i].counter, *k = known[i].key;
        philox4x32_10((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2],
                      (uint64_t)c[1] << 32 | c[0], out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    /* the third answer again, as words of a stream: the counter is {lo(call), hi(call), lo(stream),
     * hi(stream)}. index = 4*call has no room for a call above 2^62, so this call lacks the top two
     * bits, which the first two answers cover */
    const uint64_t index = 4 * 0x05a308d3243f6a88u, stream = 0x0370734413198a2eu;
    uint32_t out[4];
    philox4x32_10(0x299f31d0a4093822u, stream, index / 4, out);
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(philox_u32(0x299f31d0a4093822u, stream, index + w), out[w]);
}

/* z -- one normal number by the formula of philox.h, computed with libm. */
static double z(uint64_t seed, uint64_t stream, uint64_t i)
{
    double u1 = (philox_u32(seed, stream, i & ~1ull) + 0.5) * 0x1p-32;
    double angle = 2 * M_PI * (philox_u32(seed, stream, i | 1) * 0x1p-32);
    return sqrt(-2 * log(u1)) * (i % 2 == 0 ? cos(angle) : sin(angle));
}

static void assert_normals_from(uint64_t seed, uint64_t stream, uint64_t begin)
{
    enum { ELEMS = 1500 };
    static float all[ELEMS], some[ELEMS + 1], scaled[ELEMS];
    philox_normal_fill(seed, stream, begin, ELEMS, 1.0f, all);
    philox_normal_fill(seed, stream, begin, ELEMS, 0.02f, scaled);
    for (size_t i = 0; i < ELEMS; i++) {
        double want = z(seed, stream, begin + i);
        /* rounding to float: 2^-24 of |z|; the double steps: 10 roundings of values < 7 */
        assert_true(fabs((double)all[i] - want) <= 0x1p-24 * fabs(want) + 10 * 7 * 0x1p-53);
        assert_true(scaled[i] == 0.02f * all[i]);
    }
    for (uint32_t draw = 0; draw < 200; draw++) { /* any part has the same numbers */
        size_t skip = philox_u32(3, 1, draw) % ELEMS;
        size_t elems = philox_u32(3, 2, draw) % (ELEMS - skip + 1);
        some[elems] = 42.0f;
        philox_normal_fill(seed, stream, begin + skip, elems, 1.0f, some);
        assert_memory_equal(some, all + skip, elems * sizeof *some);
        assert_true(some[elems] == 42.0f); /* and no element more */
    }
}

TEST(test_normals)
{
    assert_normals_from(7, 0, 0);
    assert_normals_from(7, 1, 1003);
    assert_normals_from(0x123456789abcdef0u, 0xfedcba9876543210u,
                        (1ull << 34) - 700); /* call 2^32 */
}

/* Mean, variance and fourth moment of 2^20 numbers must lie within 5 standard deviations (1, sqrt
 * 2, sqrt 96, each over sqrt n). Neighbours are uncorrelated. */
TEST(test_normals_are_normal)
{
    enum { ELEMS = 1 << 20 };
    float *x = malloc(ELEMS * sizeof *x);
    double sums[4] = {0}, largest = 0;
    assert_non_null(x);
    philox_normal_fill(2024, 5, 0, ELEMS, 1.0f, x);
    for (size_t i = 0; i < ELEMS; i++) {
        double v = (double)x[i];
        sums[0] += v;
        sums[1] += v * v;
        sums[2] += v * v * v * v;
        sums[3] += i > 0 ? v * (double)x[i - 1] : 0;
        largest = fmax(largest, fabs(v));
    }
    const double n = ELEMS, bound = 5 / sqrt(n);
    assert_true(fabs(sums[0] / n) <= bound);
    assert_true(fabs(sums[1] / n - 1) <= bound * sqrt(2));
    assert_true(fabs(sums[2] / n - 3) <= bound * sqrt(96));
    assert_true(fabs(sums[3] / n) <= bound);
    assert_true(largest > 4 && largest < 6.8); /* 2^20 draws beyond 4: 66 expected */
    free(x);
}

/* ---- the same bits on every machine ---------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t data_bytes)
{
    const unsigned char *byte = data; /* FNV-1a */
    for (size_t i = 0; i < data_bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

/* A hash of every result of the float functions on the samples, some results of the double
 * functions, and normals. NaNs are left out, because their bits depend on the machine. Measured
 * equal with gcc and clang, x86-64 v1 ... v4 and aarch64. */
TEST(test_golden_bits)
{
    uint64_t hash = 0xcbf29ce484222325u;
    static float normals[10000];
    for (uint32_t i = 0; i < SAMPLES; i++) {
        float x = pm_from_bits_f(sample_bits(i));
        float y[3] = {pm_expf(x), pm_logf(x), pm_tanhf(x)};
        for (int f = 0; f < 3; f++)
            if (y[f] == y[f])
                hash = hash_bytes(hash, &y[f], sizeof y[f]);
    }
    for (uint32_t i = 0; i < 10000; i++) {
        double turns = philox_u32(4, 1, i) * 0x1p-32;
        double y[4] = {pm_log(turns + 0x1p-33), pm_cos(64.0 * turns)};
        pm_sincos_turns(turns, &y[2], &y[3]);
        hash = hash_bytes(hash, y, sizeof y);
    }
    philox_normal_fill(1, 2, 3, 10000, 0.02f, normals);
    hash = hash_bytes(hash, normals, sizeof normals);
    assert_true(hash == 0xf72417b9294ea333u);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
