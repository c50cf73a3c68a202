/* rounding_ops_lib.c -- see rounding_ops_lib.h. */
#include "tests/unit/rounding_ops_lib.h"

#include "common/base/philox.h"
#include "common/model/unit.h"

static uint64_t seed_now, next_draw;
static bool perturbs;

static float stored(float x)
{
    if (!perturbs)
        return bf16_round(x);
    const double z = 2.0 * (double)philox_u32(seed_now, 0, next_draw++) / 0x1p32 - 1.0;
    return (float)((double)x * (1.0 + 0x1p-8 * z));
}

static void store_row(void *array, size_t elems)
{
    float *x = array;
    for (size_t i = 0; i < elems; i++)
        x[i] = stored(x[i]);
}

static void store(void *array, size_t elems)
{
    FSDP_ASSERT_EQ((uintptr_t)array % LAYER_ALIGN_BYTES, 0);
    store_row(array, elems);
}

/* Rows of `width` elements, `stride` apart; 0: adjacent. */
static void store_matrix(void *array, size_t rows, size_t width, size_t stride)
{
    FSDP_ASSERT_EQ((uintptr_t)array % LAYER_ALIGN_BYTES, 0);
    for (size_t r = 0; r < rows; r++)
        store_row((float *)array + r * row_stride(stride, width), width);
}

static void store_rows(void *array, const attention_shape *h, size_t stride, size_t width)
{
    for (size_t row = 0; row < h->batch * h->seq_len; row++)
        store_row((float *)array + row * stride, width);
}

/* STORING -- the table's function `op`: calls the portable one, then runs these stores. */
#define STORING(op, ...)                                                                           \
    static fsdp_status storing_##op(stream *s, const op##_args *a)                                 \
    {                                                                                              \
        TRY(ops_cpu_portable()->op(s, a));                                                         \
        __VA_ARGS__;                                                                               \
        return FSDP_OK;                                                                            \
    }

STORING(matmul, if (!a->trans_a) store_matrix(a->out, a->m, a->n, a->out_stride))
STORING(embedding, store(a->out, a->batch * a->seq_len * a->width))
STORING(layernorm, store(a->out, a->rows * a->cols))
STORING(layernorm_backward, store(a->d_in, a->rows * a->cols))
STORING(gelu, store(a->out, a->elems))
STORING(gelu_backward, store(a->d_in, a->elems))
STORING(cross_entropy,
        if (a->d_logits) store_matrix(a->d_logits, a->rows, a->vocab, a->d_logits_stride))
STORING(attention, const attention_shape *h = &a->shape;
        store(a->out, h->batch * h->seq_len * h->n_head * h->v_head_dim))
STORING(attention_backward, const attention_shape *h = &a->shape;
        store_rows(a->d_q, h, h->q_stride, h->n_head * h->head_dim);
        store_rows(a->d_k, h, h->k_stride, h->n_kv_head * h->head_dim);
        store_rows(a->d_v, h, h->v_stride, h->n_kv_head * h->v_head_dim))

static const ops *table(void)
{
    static ops o;
    o = *ops_cpu_portable();
    o.name = perturbs ? "perturbing" : "rounding";
#define SET(op) o.op = storing_##op
    SET(matmul), SET(embedding), SET(layernorm), SET(layernorm_backward), SET(gelu);
    SET(gelu_backward), SET(attention), SET(attention_backward), SET(cross_entropy);
#undef SET
    return &o;
}

const ops *ops_rounding(void)
{
    perturbs = false;
    return table();
}

const ops *ops_perturbing(uint64_t seed)
{
    perturbs = true;
    seed_now = seed;
    next_draw = 0;
    return table();
}
