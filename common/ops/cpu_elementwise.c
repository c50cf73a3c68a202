/* cpu_elementwise.c -- operations that treat each element alone: gelu, add and scale.
 *
 * An element gets the same bits wherever it stands in its array: compiled with -ffp-contract=off,
 * a vector's body and its tail do the same roundings. Both tables use this file. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_elem.h"

/* The part of [0, elems) that tile number `tile` covers. */
typedef struct span {
    size_t begin, end;
} span;

static span tile_span(size_t elems, size_t tile)
{
    return (span){tile * TILE_ELEMS, min_size(elems, (tile + 1) * TILE_ELEMS)};
}

/* ---- gelu ----------------------------------------------------------------------------------- */

ROW_FN void gelu_span(const gelu_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++)
        row_store(a->out, i, gelu_elem(row_load(a->in, i, type)), type);
}

static fsdp_status gelu_tile(const void *args, size_t tile)
{
    const gelu_args *a = args;
    BY_TYPE(gelu_span, a->type, a, tile_span(a->elems, tile));
    return FSDP_OK;
}

ELEMENTWISE(gelu, MIN_PARALLEL_EXPS)

ROW_FN void gelu_backward_span(const gelu_backward_args *a, span t, dtype type)
{
    for (size_t i = t.begin; i < t.end; i++) {
        const float slope = gelu_slope(row_load(a->in, i, type));
        row_store(a->d_in, i, row_load(a->d_out, i, type) * slope, type);
    }
}

static fsdp_status gelu_backward_tile(const void *args, size_t tile)
{
    const gelu_backward_args *a = args;
    BY_TYPE(gelu_backward_span, a->type, a, tile_span(a->elems, tile));
    return FSDP_OK;
}

ELEMENTWISE(gelu_backward, MIN_PARALLEL_EXPS)

/* ---- add, scale ----------------------------------------------------------------------------- */

ROW_FN void add_span(const add_args *a, span t, dtype round_to)
{
    for (size_t i = t.begin; i < t.end; i++)
        a->out[i] = add_elem(a, i, round_to);
}

static fsdp_status add_tile(const void *args, size_t tile)
{
    const add_args *a = args;
    BY_TYPE(add_span, a->round_to, a, tile_span(a->elems, tile));
    return FSDP_OK;
}

ELEMENTWISE(add, MIN_PARALLEL_ELEMS)

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
