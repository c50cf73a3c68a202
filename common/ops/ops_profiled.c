/* ops_profiled.c -- see ops_profiled.h.
 *
 * What a call costs, by its arguments. FLOPs: every addition, multiplication, division, root and
 * exponential counts 1. Elements moved: every array once per call, however often a kernel reads it,
 * and twice where it is read and written; 4 bytes each, 2 for what is stored in bf16. n = rows *
 * cols, B T C or elems; R = rows; P = cols or T C; letters of ops.h. [..] only if the argument is
 * there; what is "twice" of a gradient of parameters is once with overwrite.
 *
 *   operation            FLOPs                     elements moved
 *   matmul               2 m n k                   m k + k n + m n [+ m n accumulate]
 *   bias_add             n                         2 n + P
 *   bias_backward        n                         n + twice P
 *   embedding            [n wpe]                   2 n + B T [+ P wpe]
 *   embedding_backward   n [+ n d_wpe]             3 n + B T [+ 2 P d_wpe] [+ all rows overwrite]
 *   layernorm            8 n                       2 n + 2 P + 2 R
 *   layernorm_backward   18 n [+ n d_residual]     3 n + P + twice 2 P + 2 R [+ n d_residual]
 *   gelu                 9 n                       2 n
 *   gelu_backward        19 n                      3 n
 *   attention            4 B H T^2 D / 2           B T D (2 H + 2 Hkv) + B H T
 *   attention_backward   10 B H T^2 D / 2          B T D (4 H + 4 Hkv) + B H T
 *   cross_entropy        4 n [+ n d_logits]        n + R + 1 [+ n d_logits]
 *   cast                 0                         2 n
 *   add                  n                         3 n
 *   scale                n                         2 n
 *   sum_squares          2 n                       n
 *   clip_coef            4                         2 + sizeof(rsum) / 4
 *   adamw                16 n                      7 n: param, m, v twice, grad
 *   sgd                  5 n                       3 n: param twice, grad
 *
 * Attention: two matrix products forward, five backward, over the half of the T x T scores that the
 * causal mask leaves; the softmax between them is left out (its part is about 1 / D). */
#include "common/ops/ops_profiled.h"
#include <pthread.h>
#include "common/base/clock.h"

/* ---- the table in use, and the clock of every stream ----------------------------------------- */

enum { MAX_STREAMS = 16 }; /* calls on more streams than these are not counted */

/* One stream: a call on it ends before the next begins, so one clock is enough. */
typedef struct lane {
    const stream *s;
    double begun_s; /* written and read by the stream's thread */
} lane;

static struct {
    const ops *base;
    profile *p; /* NULL: no profile */
    pthread_mutex_t lock;
    lane lanes[MAX_STREAMS]; /* guarded by lock, but for begun_s */
} installed = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* NULL when there is none left. A new stream at the address of a freed one takes over its lane. */
static lane *lane_of(const stream *s)
{
    lane *found = NULL;
    pthread_mutex_lock(&installed.lock);
    for (int i = 0; i < MAX_STREAMS && !found; i++) {
        lane *l = &installed.lanes[i];
        if (l->s == s || !l->s)
            found = l;
    }
    if (found)
        found->s = s;
    pthread_mutex_unlock(&installed.lock);
    return found;
}

/* Arguments of the task behind an operation. */
typedef struct call_end {
    lane *lane;
    profile_key key;
    profile_cost cost;
} call_end;

static fsdp_status begin_task(void *args, int n_threads)
{
    lane *l = *(lane **)args;
    (void)n_threads;
    l->begun_s = clock_now_s();
    return FSDP_OK;
}

static fsdp_status end_task(void *args, int n_threads)
{
    const call_end *e = args;
    (void)n_threads;
    profile_add(installed.p, &e->key, 1, clock_now_s() - e->lane->begun_s, e->cost);
    return FSDP_OK;
}

/* *l: NULL when this call is not counted. */
static fsdp_status call_begin(stream *s, lane **l)
{
    *l = installed.p && profile_is_counting(installed.p) ? lane_of(s) : NULL;
    return *l ? stream_launch(s, begin_task, l, sizeof *l) : FSDP_OK;
}

static fsdp_status call_end_key(stream *s, lane *l, profile_key key, profile_cost cost)
{
    if (!l)
        return FSDP_OK;
    bool computes = s == device_compute_stream(stream_device(s));
    key.kind = computes ? PROFILE_COMPUTE : PROFILE_SIDE;
    call_end e = {.lane = l, .key = key, .cost = cost};
    return stream_launch(s, end_task, &e, sizeof e);
}

/* ---- formulas: the table at the top ---------------------------------------------------------- */

/* elems: of fp32, and of half of one where an element is stored in bf16. */
static profile_cost cost(double flops, double elems)
{
    return (profile_cost){.flops = flops, .bytes = 4.0 * elems};
}

/* `elems` elements stored as t, counted in elements of fp32. */
static double stored(double elems, dtype t)
{
    return elems * (double)dtype_bytes(t) / 4.0;
}

static profile_cost cost_matmul(const matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    profile_cost c = cost(2 * m * n * k, stored(m * k, a->a_type) + stored(k * n, a->b_type) +
                                             m * n * (a->accumulate ? 2 : 1));
    c.bf16_flops = a->compute == DTYPE_BF16 ? c.flops : 0;
    return c;
}

static profile_cost cost_bias_add(const bias_add_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    return cost(n, 2 * n + stored((double)a->cols, a->param_type));
}

static profile_cost cost_bias_backward(const bias_backward_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    return cost(n, n + (a->overwrite ? 1 : 2) * (double)a->cols);
}

static profile_cost cost_embedding(const embedding_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, n = rows * (double)a->width;
    double wpe = a->wpe ? (double)a->seq_len * (double)a->width : 0;
    return cost(a->wpe ? n : 0, n + stored(n + wpe, a->param_type) + rows);
}

static profile_cost cost_embedding_backward(const embedding_backward_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, width = (double)a->width, n = rows * width;
    double d_wpe = a->d_wpe ? (double)a->seq_len * width : 0;
    size_t positions = a->d_wpe ? a->positions ? a->positions : a->seq_len : 0;
    double zeroed = a->overwrite ? (double)(a->vocab + positions) * width : 0;
    return cost(a->d_wpe ? 2 * n : n, 3 * n + rows + 2 * d_wpe + zeroed);
}

static profile_cost cost_layernorm(const layernorm_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    return cost(8 * n, 2 * n + stored(2 * cols, a->param_type) + 2 * rows);
}

static profile_cost cost_layernorm_backward(const layernorm_backward_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    double residual = a->d_residual ? n : 0, grads = (a->overwrite ? 2 : 4) * cols;
    return cost(18 * n + residual,
                3 * n + stored(cols, a->param_type) + grads + 2 * rows + residual);
}

static profile_cost cost_gelu(const gelu_args *a)
{
    return cost(9 * (double)a->elems, 2 * (double)a->elems);
}

static profile_cost cost_gelu_backward(const gelu_backward_args *a)
{
    return cost(19 * (double)a->elems, 3 * (double)a->elems);
}

static profile_cost attention_cost(size_t batch, size_t seq_len, size_t n_head, size_t n_kv_head,
                                   size_t head_dim, bool backward)
{
    double B = (double)batch, T = (double)seq_len, H = (double)n_head, D = (double)head_dim;
    double products = backward ? 5 : 2, arrays = backward ? 4 : 2;
    return cost(products * B * H * T * T * D,
                arrays * B * T * D * (H + (double)n_kv_head) + B * H * T);
}

static profile_cost cost_attention(const attention_args *a)
{
    return attention_cost(a->batch, a->seq_len, a->n_head, a->n_kv_head, a->head_dim, false);
}

static profile_cost cost_attention_backward(const attention_backward_args *a)
{
    return attention_cost(a->batch, a->seq_len, a->n_head, a->n_kv_head, a->head_dim, true);
}

static profile_cost cost_cross_entropy(const cross_entropy_args *a)
{
    double n = (double)a->rows * (double)a->vocab, grad = a->d_logits ? n : 0;
    return cost(4 * n + grad, n + grad + (double)a->rows + 1);
}

static profile_cost cost_cast(const cast_args *a)
{
    double n = (double)a->elems;
    return cost(0, stored(n, a->out_type) + stored(n, a->in_type));
}

static profile_cost cost_add(const add_args *a)
{
    const bool only_rounds = a->round_to != DTYPE_F32 && a->b == NULL;
    return cost((double)a->elems, (only_rounds ? 2 : 3) * (double)a->elems);
}

static profile_cost cost_scale(const scale_args *a)
{
    return cost((double)a->elems, 2 * (double)a->elems);
}

static profile_cost cost_sum_squares(const sum_squares_args *a)
{
    return cost(2 * (double)a->elems, (double)a->elems);
}

static profile_cost cost_clip_coef(const clip_coef_args *a)
{
    (void)a;
    return cost(4, 2 + (double)sizeof(rsum) / 4);
}

static profile_cost cost_adamw(const adamw_args *a)
{
    return cost(16 * (double)a->elems, 7 * (double)a->elems);
}

static profile_cost cost_sgd(const sgd_args *a)
{
    return cost(5 * (double)a->elems, 3 * (double)a->elems);
}

/* ---- the wrappers ---------------------------------------------------------------------------- */

/* NN, NT, TN, TT: which of a and b is stored transposed; + when it accumulates. */
static const char *matmul_form(const matmul_args *a)
{
    static const char *const FORMS[2][8] = {{"NN", "NN+", "NT", "NT+", "TN", "TN+", "TT", "TT+"},
                                            {"NN bf16", "NN+ bf16", "NT bf16", "NT+ bf16",
                                             "TN bf16", "TN+ bf16", "TT bf16", "TT+ bf16"}};
    return FORMS[a->compute == DTYPE_BF16]
                [(a->trans_a ? 4 : 0) + (a->trans_b ? 2 : 0) + (a->accumulate ? 1 : 0)];
}

static fsdp_status profiled_matmul(stream *s, const matmul_args *a)
{
    lane *l;
    TRY(call_begin(s, &l));
    TRY(installed.base->matmul(s, a));
    profile_key key = {.name = "matmul", .form = matmul_form(a), .m = a->m, .n = a->n, .k = a->k};
    return call_end_key(s, l, key, cost_matmul(a));
}

#define PROFILED(op)                                                                               \
    static fsdp_status profiled_##op(stream *s, const op##_args *a)                                \
    {                                                                                              \
        lane *l;                                                                                   \
        TRY(call_begin(s, &l));                                                                    \
        TRY(installed.base->op(s, a));                                                             \
        return call_end_key(s, l, (profile_key){.name = #op}, cost_##op(a));                       \
    }
PROFILED(bias_add)
PROFILED(bias_backward)
PROFILED(embedding)
PROFILED(embedding_backward)
PROFILED(layernorm)
PROFILED(layernorm_backward)
PROFILED(gelu)
PROFILED(gelu_backward)
PROFILED(attention)
PROFILED(attention_backward)
PROFILED(cross_entropy)
PROFILED(cast)
PROFILED(add)
PROFILED(scale)
PROFILED(sum_squares)
PROFILED(clip_coef)
PROFILED(adamw)
PROFILED(sgd)

/* Sums are the same operations: their add is an add, their round is a cast. What `run` adds is part
 * of the collective that runs it. */
static fsdp_status profiled_sums_add(stream *s, const add_args *a)
{
    lane *l;
    TRY(call_begin(s, &l));
    TRY(installed.base->sums->add(s, a));
    return call_end_key(s, l, (profile_key){.name = "add"}, cost_add(a));
}

static fsdp_status profiled_sums_round(stream *s, const round_args *a)
{
    lane *l;
    TRY(call_begin(s, &l));
    TRY(installed.base->sums->round(s, a));
    return call_end_key(s, l, (profile_key){.name = "cast"},
                        cost_cast(&(cast_args){.out_type = DTYPE_BF16, .elems = a->elems}));
}

fsdp_status ops_launch_adamw(stream *s, stream_fn kernel, const adamw_args *a)
{
    lane *l;
    TRY(call_begin(s, &l));
    TRY(stream_launch(s, kernel, a, sizeof *a));
    return call_end_key(s, l, (profile_key){.name = "adamw"}, cost_adamw(a));
}

fsdp_status ops_profiled(const ops *base, profile *p, const ops **out)
{
    static ops table;
    static sum_kernels sums;
    if (installed.p)
        return fsdp_error(FSDP_ESTATE, "call ops_profiled_end first",
                          "ops_profiled: a table is being profiled already");
    sums = (sum_kernels){
        .add = profiled_sums_add, .round = profiled_sums_round, .run = base->sums->run};
    table = (ops){.name = base->name,
                  .matmul = profiled_matmul,
                  .bias_add = profiled_bias_add,
                  .bias_backward = profiled_bias_backward,
                  .embedding = profiled_embedding,
                  .embedding_backward = profiled_embedding_backward,
                  .layernorm = profiled_layernorm,
                  .layernorm_backward = profiled_layernorm_backward,
                  .gelu = profiled_gelu,
                  .gelu_backward = profiled_gelu_backward,
                  .attention = profiled_attention,
                  .attention_backward = profiled_attention_backward,
                  .cross_entropy = profiled_cross_entropy,
                  .cast = profiled_cast,
                  .add = profiled_add,
                  .scale = profiled_scale,
                  .sum_squares = profiled_sum_squares,
                  .clip_coef = profiled_clip_coef,
                  .adamw = profiled_adamw,
                  .sgd = profiled_sgd,
                  .sums = &sums};
    installed.base = base;
    installed.p = p;
    *out = &table;
    return FSDP_OK;
}

void ops_profiled_end(void)
{
    installed.base = NULL;
    installed.p = NULL;
    for (int i = 0; i < MAX_STREAMS; i++)
        installed.lanes[i] = (lane){0};
}
