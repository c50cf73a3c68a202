/* cpu_elementwise.c -- element-wise operations: gelu, swiglu, relu, cast, add and scale; and rope,
 * which works on pairs of elements.
 *
 * An element gets the same bits at every index of its array: with -ffp-contract=off, vectorised
 * loop bodies and their scalar tails round alike. Both tables use this file. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_elem.h"
#include "common/ops/row_image.h"

/* The part of [0, elems) that tile number `tile` covers. */
typedef struct span {
    size_t begin, end;
} span;

static span tile_span(size_t elems, size_t tile)
{
    return (span){tile * TILE_ELEMS, min_size(elems, (tile + 1) * TILE_ELEMS)};
}

/* SPANS(op, type, ...) defines cpu_op, which runs op_span on each tile's part of the elements; the
 * last argument of op_span is a->type, as a constant. */
#define SPANS(op, type, min_work)                                                                  \
    static fsdp_status op##_tile(const void *args, size_t tile)                                    \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        BY_TYPE(op##_span, a->type, a, tile_span(a->elems, tile));                                 \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    ELEMENTWISE(op, min_work)

/* ---- gelu ----------------------------------------------------------------------------------- */

ROW_FN void gelu_span(const gelu_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++)
        row_store(a->out, i, gelu_elem(row_load(a->in, i, type)), type);
}

SPANS(gelu, type, MIN_PARALLEL_EXPS)

ROW_FN void gelu_backward_span(const gelu_backward_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++) {
        const float slope = gelu_slope(row_load(a->in, i, type));
        row_store(a->d_in, i, row_load(a->d_out, i, type) * slope, type);
    }
}

SPANS(gelu_backward, type, MIN_PARALLEL_EXPS)

/* ---- relu ----------------------------------------------------------------------------------- */

ROW_FN void relu_span(const relu_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++) {
        const float x = row_load(a->in, i, type);
        row_store(a->out, i, relu_elem(x, x), type);
    }
}

SPANS(relu, type, MIN_PARALLEL_ELEMS)

ROW_FN void relu_backward_span(const relu_backward_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++)
        row_store(a->d_in, i, relu_elem(row_load(a->d_out, i, type), row_load(a->in, i, type)),
                  type);
}

SPANS(relu_backward, type, MIN_PARALLEL_ELEMS)

/* ---- swiglu, rope --------------------------------------------------------------------------- */

ROW_FN void swiglu_span(const swiglu_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++)
        swiglu_elem(a, i, type);
}

SPANS(swiglu, type, MIN_PARALLEL_EXPS)

ROW_FN void swiglu_backward_span(const swiglu_backward_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++)
        swiglu_backward_elem(a, i, type);
}

SPANS(swiglu_backward, type, MIN_PARALLEL_EXPS)

static fsdp_status rope_tile(const void *args, size_t tile)
{
    const rope_args *a = args;
    for (size_t i = 0; i < a->head_dim / 2; i++)
        BY_TYPE(rope_pairs, a->type, a, tile, i);
    return FSDP_OK;
}

TILED(rope, a->batch * a->seq_len, a->batch * a->seq_len * a->n_head * a->head_dim,
      MIN_PARALLEL_EXPS)

/* ---- cast ----------------------------------------------------------------------------------- */

static fsdp_status cast_tile(const void *args, size_t tile)
{
    const cast_args *a = args;
    const span t = tile_span(a->elems, tile);
    if (a->out_type == a->in_type) {
        const size_t bytes = dtype_bytes(a->in_type);
        memcpy((char *)a->out + t.begin * bytes, (const char *)a->in + t.begin * bytes,
               (t.end - t.begin) * bytes);
    } else if (a->out_type == DTYPE_BF16) {
        uint16_t *restrict out = a->out;
        const float *restrict in = a->in;
        for (size_t i = t.begin; i < t.end; i++)
            out[i] = bf16_from_f32(in[i]);
    } else {
        float *restrict out = a->out;
        const uint16_t *restrict in = a->in;
        for (size_t i = t.begin; i < t.end; i++)
            out[i] = f32_from_bf16(in[i]);
    }
    return FSDP_OK;
}

ELEMENTWISE(cast, MIN_PARALLEL_ELEMS)

/* ---- add, scale ----------------------------------------------------------------------------- */

ROW_FN void add_span(const add_args *a, span t, dtype round_to)
{
    for (size_t i = t.begin; i < t.end; i++)
        a->out[i] = add_elem(a, i, round_to);
}

SPANS(add, round_to, MIN_PARALLEL_ELEMS)

static fsdp_status scale_tile(const void *args, size_t tile)
{
    const scale_args *a = args;
    const span t = tile_span(a->elems, tile);
    const float factor = a->factor;
    float *x = a->x;
    for (size_t i = t.begin; i < t.end; i++)
        x[i] *= factor;
    return FSDP_OK;
}

ELEMENTWISE(scale, MIN_PARALLEL_ELEMS)
