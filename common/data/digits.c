/* digits.c -- draw digits that look handwritten, for runs without MNIST's files: the strokes of a
 * digit, shifted, turned, slanted and stretched, with a random thickness, on a noisy background.
 * A digit depends only on its number: word i of the number's Philox stream has the use that the
 * second enum below names. All arithmetic is fp32 + - * / and sqrt, so pixels are the same
 * everywhere. */
#include <math.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/data/data_impl.h"

enum { SEED = 28, N_FORMS = 2, MOST_POINTS = 24 };

/* Two forms of each digit. A point is two digits of x (to the right) and two of y (down), in
 * hundredths of the height. Lines join the points of a stroke; "|" begins another stroke. */
static const char *const FORMS[IMAGE_CLASSES][N_FORMS] = {
    {"5005 7214 8235 8265 7286 5095 2886 1865 1835 2814 5005",
     "5505 7516 8240 7570 5592 3594 2078 2050 3022 5505"},
    {"5005 5095", "3024 5205 5295"},
    {"2028 2810 5005 7212 7830 7048 4570 1895 8295",
     "2422 4006 6410 7428 6650 4072 2490 4084 6092 8290"},
    {"2214 4805 7213 7630 6245 4248|4248 6852 8070 7288 4895 2086",
     "2206 7806 4640 7052 8070 7088 4495 2288"},
    {"6295 6205 1666 8666", "2408 2055 8055|6810 6295"},
    {"7806 2806 2446 5040 7448 8168 7088 4695 2087",
     "3006 2648 5242 7654 7882 5095 2490|3006 7804"},
    {"7008 4222 2450 2072 3291 5295 7486 8068 6852 4650 2464",
     "3805 2640 2272 4094 6890 7670 6052 2662"},
    {"1808 8208 4495", "2008 8006 5050 4495|3650 7250"},
    {"5048 2836 2618 4805 7014 7432 5048 2464 2284 4895 7686 7864 5048",
     "7214 4806 2820 4040 7262 7486 5095 2684 2864 6438 7214"},
    {"7836 5650 3246 2228 3210 5405 7414 7836 7470 5695", "7428 5006 2626 3848 7030 7428 7095"},
};

/* The use of each random number. Philox call FOR_PIXELS + i / 16 has the noise of pixel i. */
enum {
    FOR_DIGIT,
    FOR_FORM,
    FOR_SHIFT,
    FOR_TURN = 4,
    FOR_SCALE = 6,
    FOR_PEN = 8,
    FOR_INK,
    FOR_NOISE,
    FOR_STRAY,
    FOR_POINTS = 20,
    FOR_PIXELS = 32
};

static float between(uint64_t number, uint64_t index, float low, float high)
{
    return low + (high - low) * ((float)(philox_u32(SEED, number, index) >> 8) * 0x1p-24f);
}

typedef struct point {
    float x, y;
} point;

/* The lines of a digit, in pixels. */
typedef struct drawing {
    point from[MOST_POINTS], to[MOST_POINTS];
    int n_lines;
} drawing;

/* Point i of a form, bent a little, then stretched, slanted, turned and shifted. */
static point place(uint64_t number, const char *text, int i)
{
    const float x = (float)((text[0] - '0') * 10 + text[1] - '0') / 100.0f - 0.5f;
    const float y = (float)((text[2] - '0') * 10 + text[3] - '0') / 100.0f - 0.5f;
    const uint64_t words = FOR_POINTS + 2 * (uint64_t)i;
    const float bent_x =
        (x + between(number, words, -0.04f, 0.04f)) * between(number, FOR_SCALE, 13.0f, 20.0f);
    const float bent_y = (y + between(number, words + 1, -0.04f, 0.04f)) *
                         between(number, FOR_SCALE + 1, 17.0f, 22.0f);
    const float slant = between(number, FOR_TURN, -0.4f, 0.4f);
    const float turn = between(number, FOR_TURN + 1, -0.25f, 0.25f);
    return (point){
        14.0f + between(number, FOR_SHIFT, -2.5f, 2.5f) + bent_x - slant * bent_y,
        14.0f + between(number, FOR_SHIFT + 1, -2.5f, 2.5f) + bent_y + turn * bent_x,
    };
}

static void add_line(drawing *d, point from, point to)
{
    d->from[d->n_lines] = from;
    d->to[d->n_lines++] = to;
}

static drawing draw_lines(uint64_t number, const char *text)
{
    drawing d = {.n_lines = 0};
    point last = {0};
    bool begins = true;
    for (int i = 0; *text; i++) {
        const point next = place(number, text, i);
        if (!begins)
            add_line(&d, last, next);
        last = next;
        begins = text[4] == '|';
        text += text[4] ? 5 : 4;
    }
    /* a quarter of the digits have a stray line somewhere in the picture */
    if (between(number, FOR_STRAY, 0, 1) < 0.25f) {
        const point a = {between(number, FOR_STRAY + 1, 0, 28),
                         between(number, FOR_STRAY + 2, 0, 28)};
        add_line(&d, a,
                 (point){a.x + between(number, FOR_STRAY + 3, -8, 8),
                         a.y + between(number, FOR_STRAY + 4, -8, 8)});
    }
    return d;
}

/* The square of the distance of point p from the line between `from` and `to`. */
static float square_distance(point p, point from, point to)
{
    const float dx = to.x - from.x, dy = to.y - from.y, x = p.x - from.x, y = p.y - from.y;
    const float length = dx * dx + dy * dy;
    float t = length > 0.0f ? (x * dx + y * dy) / length : 0.0f;
    t = t < 0.0f ? 0.0f : t > 1.0f ? 1.0f : t;
    const float ex = x - t * dx, ey = y - t * dy;
    return ex * ex + ey * ey;
}

/* Add noise between -most and most to pixels i ... i + 15, and round. */
static void finish(uint64_t number, int i, float most, const float *values, unsigned char *pixels)
{
    uint32_t words[4];
    philox4x32_10(SEED, number, FOR_PIXELS + (uint64_t)i / 16, words);
    for (int j = 0; j < 16; j++) {
        const float byte = (float)(words[j / 4] >> j % 4 * 8 & 255);
        const float value = values[i + j] + (byte / 127.5f - 1.0f) * most;
        pixels[i + j] = (unsigned char)(value < 0.0f     ? 0.0f
                                        : value > 255.0f ? 255.0f
                                                         : value + 0.5f);
    }
}

int digit_draw(uint64_t number, unsigned char *pixels)
{
    const int digit = (int)(philox_u32(SEED, number, FOR_DIGIT) % IMAGE_CLASSES);
    const int form = (int)(philox_u32(SEED, number, FOR_FORM) % N_FORMS);
    const drawing d = draw_lines(number, FORMS[digit][form]);
    const float pen = between(number, FOR_PEN, 0.7f, 1.7f); /* half the line's width */
    const float ink = between(number, FOR_INK, 150.0f, 255.0f);
    const float noise = between(number, FOR_NOISE, 10.0f, 70.0f);
    float values[IMAGE_PIXELS];
    for (int i = 0; i < IMAGE_PIXELS; i++) {
        const point p = {(float)(i % IMAGE_SIDE) + 0.5f, (float)(i / IMAGE_SIDE) + 0.5f};
        float nearest = 1e9f;
        for (int line = 0; line < d.n_lines; line++) {
            const float square = square_distance(p, d.from[line], d.to[line]);
            nearest = square < nearest ? square : nearest;
        }
        float cover = pen + 0.5f - sqrtf(nearest); /* the edge is a pixel wide */
        cover = cover < 0.0f ? 0.0f : cover > 1.0f ? 1.0f : cover;
        values[i] = cover * ink;
    }
    for (int i = 0; i < IMAGE_PIXELS; i += 16)
        finish(number, i, noise, values, pixels);
    return digit;
}
