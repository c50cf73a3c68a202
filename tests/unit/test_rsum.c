/* test_rsum.c -- exact sums of squares, against a reference that keeps one bit per byte. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/base/pmath.h"
#include "common/sum/rsum_digits.h"
#include "tests/unit/unit_lib.h"

enum { REF_BITS = 640, REF_UNIT_LOG2 = -298 };

typedef struct reference {
    uint8_t bit[REF_BITS]; /* bit[i] weighs 2^(i - 298) */
} reference;

static void reference_add_square(reference *ref, float x)
{
    int exponent;
    double fraction = frexp(fabs((double)x), &exponent);
    uint64_t m = (uint64_t)ldexp(fraction, 24); /* x = m * 2^(exponent - 24) */
    uint64_t square = m * m;
    int place = 2 * (exponent - 24) - REF_UNIT_LOG2;
    for (; place < 0; place++, square >>= 1)
        assert_int_equal(square & 1, 0);
    for (unsigned carry = 0; square != 0 || carry != 0; place++, square >>= 1) {
        unsigned digit = ref->bit[place] + (unsigned)(square & 1) + carry;
        ref->bit[place] = digit & 1;
        carry = digit >> 1;
    }
}

static double reference_value(const reference *ref)
{
    int top = REF_BITS - 1;
    while (top > 0 && !ref->bit[top])
        top--;
    double value = 0;
    int last = top - 52 > 0 ? top - 52 : 0; /* index of the last bit kept */
    for (int i = top; i >= last; i--)
        value = 2 * value + ref->bit[i];
    bool below = false;
    for (int i = 0; i < last - 1; i++)
        below |= ref->bit[i];
    if (last > 0 && ref->bit[last - 1] && (below || ref->bit[last]))
        value += 1;
    return ldexp(value, last + REF_UNIT_LOG2);
}

enum { RSUM_ELEMS = 3000 };

/* random_floats -- finite, any sign; biased exponents in [low, low + range), of 0 ... 254. */
static void random_floats(float *x, size_t elems, uint32_t stream, uint32_t low, uint32_t range)
{
    for (size_t i = 0; i < elems; i++) {
        uint32_t w = philox_u32(21, stream, 2 * i), e = philox_u32(21, stream, 2 * i + 1);
        x[i] = pm_from_bits_f((w & 0x807fffff) | (low + e % range) << 23);
    }
}

static rsum squares_of(const float *x, size_t elems)
{
    rsum sum = {{0}};
    rsum_add_squares(&sum, x, elems);
    return sum;
}

/* Adding x in random parts, merged in pairs or bin by bin, must give the same bins. */
static void assert_any_split(const float *x, size_t elems, const rsum *whole, uint32_t stream)
{
    rsum merged = {0}, plain = {0};
    for (size_t begin = 0, draw = 0; begin < elems;) {
        size_t take = philox_u32(22, stream, draw++) % 700;
        take = take < elems - begin ? take : elems - begin;
        const rsum part = squares_of(x + begin, take);
        rsum_merge(&merged, &part);
        for (int i = 0; i < RSUM_BINS; i++)
            plain.bin[i] += part.bin[i];
        begin += take;
    }
    assert_memory_equal(&merged, whole, sizeof merged);
    assert_true(rsum_value(&plain) == rsum_value(whole));
    rsum_add_squares(&plain, NULL, 0); /* normalises */
    assert_memory_equal(&plain, whole, sizeof plain);
}

/* Compare with the reference, in one piece and in parts (which begin blocks at other elements). */
static void assert_exact(const float *x, size_t elems, uint32_t stream)
{
    static reference ref;
    memset(&ref, 0, sizeof ref);
    for (size_t i = 0; i < elems; i++)
        reference_add_square(&ref, x[i]);
    const rsum sum = squares_of(x, elems);
    double want = reference_value(&ref), got = rsum_value(&sum);
    assert_memory_equal(&got, &want, sizeof got);
    assert_any_split(x, elems, &sum, stream);
    for (int i = 0; i < RSUM_DIGITS; i++) { /* every digit, also those that rsum_value drops */
        uint64_t digit = 0;
        for (int b = 31; b >= 0; b--)
            digit = digit << 1 | ref.bit[32 * i + b];
        assert_int_equal(sum.bin[i], digit);
    }
}

TEST(test_rsum_is_exact)
{
    static float x[RSUM_ELEMS];
    const struct {
        uint32_t low, range;
    } exponents[] = {{0, 255}, {0, 1}, {0, 3}, {254, 1}, {100, 20}, {127, 1}, {1, 1}, {64, 128}};
    for (uint32_t c = 0; c < sizeof exponents / sizeof exponents[0]; c++) {
        for (size_t elems = 0; elems <= RSUM_ELEMS; elems = elems < 9 ? elems + 1 : elems * 3) {
            random_floats(x, elems, c, exponents[c].low, exponents[c].range);
            assert_exact(x, elems, c);
        }
    }
}

/* Blocks whose smallest exponent is `spread` below the largest: near the edges of the window of two
 * sums (22) and of three (45), and far beyond. Largest exponents near the ends of the range, where
 * windows are cut off at the bins' unit (23, 46), including denormals. Mantissas are odd, so the
 * last bit of every square counts. */
TEST(test_rsum_exponents_apart)
{
    static float x[RSUM_ELEMS];
    const uint32_t tops[] = {1, 2, 22, 23, 24, 45, 46, 47, 100, 127, 200, 253, 254};
    const uint32_t spreads[] = {0, 1, 21, 22, 23, 44, 45, 46, 47, 90, 253, 254};
    for (uint32_t t = 0; t < sizeof tops / sizeof tops[0]; t++) {
        for (uint32_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++) {
            const uint32_t top = tops[t], low = spreads[s] < top ? top - spreads[s] : 0;
            const uint32_t stream = 100 + 16 * t + s;
            for (size_t i = 0; i < RSUM_ELEMS; i++) {
                uint32_t w = philox_u32(23, stream, i);
                uint32_t e = w % 8 == 0 ? low : w % 8 == 1 ? low + (top > low) : top;
                x[i] = w % 64 == 5 ? 0.0f : pm_from_bits_f((w & 0x807fffff) | 1 | e << 23);
            }
            assert_exact(x, RSUM_ELEMS, stream);
            assert_exact(x + 1, 17, stream);
        }
    }
}

/* Blocks that are most likely to push the sums of a window out of their binade: all squares as
 * large as possible, and remainders of one sign, as equal elements have. */
TEST(test_rsum_full_windows)
{
    static float x[RSUM_ELEMS];
    const uint32_t mantissas[] = {0x7fffff, 5, 7, 11, 0x2aaaab, 0x555555};
    for (uint32_t m = 0; m < sizeof mantissas / sizeof mantissas[0]; m++) {
        for (uint32_t below = 0; below < 30; below++) {
            for (size_t i = 0; i < RSUM_ELEMS; i++)
                x[i] = pm_from_bits_f(mantissas[m] | (150 - below) << 23);
            x[0] = pm_from_bits_f(mantissas[m] | 150u << 23); /* makes the window */
            x[RSUM_ELEMS / 2] = x[0];
            x[RSUM_ELEMS - 1] = x[0];
            assert_exact(x, RSUM_ELEMS, 400 + m);
        }
    }
}

/* One outlier in a block: it must be added where it is held exactly. */
TEST(test_rsum_outliers)
{
    static float x[RSUM_ELEMS];
    const float outliers[] = {0x1p-149f,       0x1.fffffcp-127f, 0x1p-126f, 0x1.000002p-24f,
                              0x1.000002p-47f, 0x1.fffffep127f,  0.0f,      -0.0f};
    const size_t places[] = {0, 15, 16, 1023, 1024, 2047, 2999};
    random_floats(x, RSUM_ELEMS, 50, 120, 8);
    for (size_t o = 0; o < sizeof outliers / sizeof outliers[0]; o++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            const float before = x[places[p]];
            x[places[p]] = outliers[o];
            assert_exact(x, RSUM_ELEMS, 500);
            x[places[p]] = before;
        }
    }
}

static double value_of(const float *x, size_t elems)
{
    const rsum sum = squares_of(x, elems);
    return rsum_value(&sum);
}

TEST(test_rsum_rounds_to_nearest_even)
{
    /* doubles near 2^54 are 4 apart; each +2 (1 + 1) is half a step */
    const float even[] = {0x1p27f, 1, 1}, odd[] = {0x1p27f, 2, 1, 1};
    const float above[] = {0x1p27f, 1, 1, 0x1p-149f}, below[] = {0x1p27f, 2, 1};
    assert_true(value_of(even, 3) == 0x1p54);
    assert_true(value_of(odd, 4) == 0x1p54 + 8);
    assert_true(value_of(above, 4) == 0x1p54 + 4); /* a bit 352 places down decides */
    assert_true(value_of(below, 3) == 0x1p54 + 4);
    assert_true(value_of(above + 3, 1) == 0x1p-298);
    assert_true(value_of(NULL, 0) == 0.0);
}

/* Many blocks of equal exponents and full mantissas, which would overflow first. */
TEST(test_rsum_large_blocks)
{
    const size_t elems = (1 << 17) + 3;
    float *x = malloc(elems * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < elems; i++)
        x[i] = FLT_MAX;
    /* (2^24 - 1)^2 * n = 2^48 n - (2^25 - 1) n; the low 41 bits of the product round away */
    unsigned __int128 sum = (unsigned __int128)0xffffff * 0xffffff * elems;
    assert_true(value_of(x, elems) == ldexp((double)sum, 2 * (127 - 23)));

    rsum part = squares_of(x, elems), other;
    double one = rsum_value(&part);
    for (int i = 0; i < RSUM_BINS; i++)
        part.bin[i] *= (int64_t)1 << 30; /* 2^30 equal parts added bin by bin */
    assert_true(rsum_value(&part) == ldexp(one, 30));
    other = part;
    rsum_merge(&part, &other);
    assert_true(rsum_value(&part) == ldexp(one, 31));
    for (int i = 0; i < RSUM_DIGITS; i++)
        assert_true(part.bin[i] >= 0 && part.bin[i] <= 0xffffffff);

    rsum full = {{0}}; /* the largest possible digits: all ones, 2^30 times */
    for (int i = 0; i < RSUM_DIGITS - 1; i++)
        full.bin[i] = (int64_t)0xffffffff << 30;
    one = rsum_value(&full);
    other = full;
    rsum_merge(&full, &other);
    assert_true(rsum_value(&full) == 2 * one);
    assert_true(one == 0x1p340); /* 2^(32*19) - 1 units of 2^-298, times 2^30, rounded */
    free(x);
}

TEST(test_rsum_specials)
{
    const float with_inf[] = {1, -INFINITY, 2, INFINITY, 3}, with_nan[] = {1, NAN, 2};
    rsum inf = squares_of(with_inf, 5), nan = squares_of(with_nan, 3);
    rsum_add_squares(&nan, with_inf, 1); /* a block without specials after one with */
    assert_true(rsum_value(&inf) == INFINITY);
    assert_true(isnan(rsum_value(&nan)));
    assert_int_equal(inf.bin[RSUM_BIN_INF], 2);
    assert_int_equal(inf.bin[RSUM_BIN_NAN], 0);
    assert_int_equal(nan.bin[RSUM_BIN_NAN], 1);
    assert_int_equal(nan.bin[RSUM_BIN_INF], 0);
    const float near_inf[] = {FLT_MAX, INFINITY}; /* adjacent exponents */
    const rsum near = squares_of(near_inf, 2), largest = squares_of(near_inf, 1);
    assert_int_equal(near.bin[RSUM_BIN_INF], 1);
    assert_memory_equal(near.bin, largest.bin, RSUM_DIGITS * sizeof *near.bin);
    rsum_merge(&inf, &nan);
    assert_true(isnan(rsum_value(&inf)));
    assert_int_equal(inf.bin[RSUM_BIN_INF], 2);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
