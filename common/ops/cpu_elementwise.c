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

/* Some elements take so many instructions that few loads are in flight, and the loop would wait for
 * memory at every line. So their inputs are fetched FETCH_ELEMS elements ahead. x NULL: nothing. */
enum { FETCH_ELEMS = 256 };

ROW_FN void fetch(const void *x, size_t i, dtype type)
{
    if (x == NULL)
        return;
    const char *line = row_at(x, i, type), *const end = row_at(x, i + FETCH_ELEMS, type);
    for (; line < end; line += 64)
        __builtin_prefetch(line);
}

/* ELEMENTS(op, type, min_work, in, in2) defines cpu_op, which runs op_at for each element; the last
 * argument of op_at is a->type, as a constant. in, in2: inputs of that type to fetch, or NULL. */
#define ELEMENTS(op, type, min_work, in, in2)                                                      \
    ROW_FN void op##_span(const op##_args *a, span t, dtype as)                                    \
    {                                                                                              \
        for (size_t i = t.begin; i < t.end; i += FETCH_ELEMS) {                                    \
            fetch(in, i + FETCH_ELEMS, as);                                                        \
            fetch(in2, i + FETCH_ELEMS, as);                                                       \
            for (size_t j = i; j < min_size(t.end, i + FETCH_ELEMS); j++)                          \
                op##_at(a, j, as);                                                                 \
        }                                                                                          \
    }                                                                                              \
    static fsdp_status op##_tile(const void *args, size_t tile)                                    \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        BY_TYPE(op##_span, a->type, a, tile_span(a->elems, tile));                                 \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    ELEMENTWISE(op, min_work)

ELEMENTS(gelu, type, MIN_PARALLEL_EXPS, a->in, NULL)
ELEMENTS(gelu_backward, type, MIN_PARALLEL_EXPS, a->in, a->d_out)
ELEMENTS(relu, type, MIN_PARALLEL_ELEMS, NULL, NULL)
ELEMENTS(relu_backward, type, MIN_PARALLEL_ELEMS, NULL, NULL)
ELEMENTS(swiglu, type, MIN_PARALLEL_EXPS, a->gate, a->up)
ELEMENTS(swiglu_backward, type, MIN_PARALLEL_EXPS, a->gate, a->d_out)
ELEMENTS(add, round_to, MIN_PARALLEL_ELEMS, NULL, NULL)

/* ---- rope ----------------------------------------------------------------------------------- */

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

/* ---- scale ---------------------------------------------------------------------------------- */

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
