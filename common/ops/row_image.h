/* row_image.h -- operations on planes of images, and dropout. See row_sums.h. */
#pragma once
#include "common/base/philox.h"
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"

/* relu_elem -- x if y > 0 or y is NaN, else 0. relu passes (in, in), relu_backward
 * (d_out, in). */
ROW_FN float relu_elem(float x, float y)
{
    return y <= 0.0f ? 0.0f : x;
}

/* relu_at -- element i of out. relu_backward_at -- element i of d_in. */
ROW_FN void relu_at(const relu_args *a, size_t i, dtype type)
{
    const float x = row_load(a->in, i, type);
    row_store(a->out, i, relu_elem(x, x), type);
}
ROW_FN void relu_backward_at(const relu_backward_args *a, size_t i, dtype type)
{
    row_store(a->d_in, i, relu_elem(row_load(a->d_out, i, type), row_load(a->in, i, type)), type);
}

/* pool_largest -- index of the largest of four elements of a plane `width` wide: `at`, and those to
 * its right and below. The first of equals; the last NaN, if there is one. */
ROW_FN size_t pool_largest(const void *in, size_t at, size_t width, dtype type)
{
    size_t best = at;
    float most = row_load(in, at, type);
    for (size_t k = 1; k < 4; k++) {
        const size_t i = at + k % 2 + k / 2 * width;
        const float x = row_load(in, i, type);
        const bool is_more = (x > most) | (x != x); /* no branch: it could not be predicted */
        best = is_more ? i : best;
        most = is_more ? x : most;
    }
    return best;
}

/* max_pool2d_plane -- plane number `plane` of out. */
ROW_FN void max_pool2d_plane(const max_pool2d_args *a, size_t plane, dtype type)
{
    const size_t height = a->height / 2, width = a->width / 2;
    const void *in = row_at(a->in, plane * a->height * a->width, type);
    void *out = row_out_at(a->out, plane * height * width, type);
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) {
            const size_t best = pool_largest(in, 2 * (y * a->width + x), a->width, type);
            row_store(out, y * width + x, row_load(in, best, type), type);
        }
}

/* max_pool2d_backward_plane -- plane number `plane` of d_in. */
ROW_FN void max_pool2d_backward_plane(const max_pool2d_backward_args *a, size_t plane, dtype type)
{
    const size_t height = a->height / 2, width = a->width / 2, elems = a->height * a->width;
    const void *in = row_at(a->in, plane * elems, type);
    const void *d_out = row_at(a->d_out, plane * height * width, type);
    void *d_in = row_out_at(a->d_in, plane * elems, type);
    for (size_t i = 0; i < elems; i++)
        row_store(d_in, i, 0.0f, type);
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) {
            const size_t best = pool_largest(in, 2 * (y * a->width + x), a->width, type);
            row_store(d_in, best, row_load(d_out, y * width + x, type), type);
        }
}

/* dropout_four -- elements 4*four ... 4*four + 3 of sample i that exist. */
ROW_FN void dropout_four(const dropout_args *a, size_t i, size_t four, dtype type)
{
    const float scale = (float)(1.0 / (1.0 - (double)a->p));
    const uint32_t below = (uint32_t)((double)a->p * 0x1p32);
    uint32_t words[4];
    philox4x32_10(a->seed, ((a->layer + 1) << 32) + four, a->first_sample + i, words);
    for (size_t k = 0; k < 4 && 4 * four + k < a->width; k++) {
        const size_t at = i * a->width + 4 * four + k;
        row_store(a->out, at, words[k] < below ? 0.0f : row_load(a->in, at, type) * scale, type);
    }
}
