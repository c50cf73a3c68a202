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

static fsdp_status matmul(stream *s, const matmul_args *a)
{
    TRY(ops_cpu_portable()->matmul(s, a));
    if (!a->trans_a)
        store(a->out, a->m * a->n);
    return FSDP_OK;
}

static fsdp_status embedding(stream *s, const embedding_args *a)
{
    TRY(ops_cpu_portable()->embedding(s, a));
    store(a->out, a->batch * a->seq_len * a->width);
    return FSDP_OK;
}

static fsdp_status layernorm(stream *s, const layernorm_args *a)
{
    TRY(ops_cpu_portable()->layernorm(s, a));
    store(a->out, a->rows * a->cols);
    return FSDP_OK;
}

static fsdp_status layernorm_backward(stream *s, const layernorm_backward_args *a)
{
    TRY(ops_cpu_portable()->layernorm_backward(s, a));
    store(a->d_in, a->rows * a->cols);
    return FSDP_OK;
}

static fsdp_status gelu(stream *s, const gelu_args *a)
{
    TRY(ops_cpu_portable()->gelu(s, a));
    store(a->out, a->elems);
    return FSDP_OK;
}

static fsdp_status gelu_backward(stream *s, const gelu_backward_args *a)
{
    TRY(ops_cpu_portable()->gelu_backward(s, a));
    store(a->d_in, a->elems);
    return FSDP_OK;
}

static fsdp_status attention(stream *s, const attention_args *a)
{
    const attention_shape *h = &a->shape;
    TRY(ops_cpu_portable()->attention(s, a));
    store(a->out, h->batch * h->seq_len * h->n_head * h->v_head_dim);
    return FSDP_OK;
}

static void store_rows(void *array, const attention_shape *h, size_t stride, size_t width)
{
    for (size_t row = 0; row < h->batch * h->seq_len; row++)
        store_row((float *)array + row * stride, width);
}

static fsdp_status attention_backward(stream *s, const attention_backward_args *a)
{
    const attention_shape *h = &a->shape;
    TRY(ops_cpu_portable()->attention_backward(s, a));
    store_rows(a->d_q, h, h->q_stride, h->n_head * h->head_dim);
    store_rows(a->d_k, h, h->k_stride, h->n_kv_head * h->head_dim);
    store_rows(a->d_v, h, h->v_stride, h->n_kv_head * h->v_head_dim);
    return FSDP_OK;
}

static fsdp_status cross_entropy(stream *s, const cross_entropy_args *a)
{
    TRY(ops_cpu_portable()->cross_entropy(s, a));
    if (a->d_logits != NULL)
        store(a->d_logits, a->rows * a->vocab);
    return FSDP_OK;
}

static const ops *table(void)
{
    static ops o;
    o = *ops_cpu_portable();
    o.name = perturbs ? "perturbing" : "rounding";
    o.matmul = matmul;
    o.embedding = embedding;
    o.layernorm = layernorm;
    o.layernorm_backward = layernorm_backward;
    o.gelu = gelu;
    o.gelu_backward = gelu_backward;
    o.attention = attention;
    o.attention_backward = attention_backward;
    o.cross_entropy = cross_entropy;
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
