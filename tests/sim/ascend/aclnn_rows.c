/* aclnn_rows.c -- the arithmetic of aclnn's operators that work by rows, for the stand-in. See
 * aclnn_sim.h and aclnn_math.c. */
#include <math.h>
#include <stdlib.h>
#include "common/base/pmath.h"
#include "tests/sim/ascend/aclnn_sim.h"

/* ---- layer and RMS norm ---------------------------------------------------------------------- */

static bool is_there(const sim_tensor *t)
{
    return t->type != ACL_DT_UNDEFINED;
}

/* t as dense fp32, or n zeros if t was not given. */
static float *load_optional(const sim_tensor *t, int64_t n)
{
    return is_there(t) ? sim_load(t) : calloc((size_t)(n + 1), sizeof(float));
}

static float sum_down(const float *x, int64_t n)
{
    float sum = 0.0f;
    while (n > 0)
        sum += x[--n];
    return sum;
}

fsdp_status sim_norm(const sim_op *o)
{
    const sim_tensor *in = &o->t[0];
    const bool has_mean = is_there(&o->t[4]);
    const int64_t rows = sim_elems(&o->t[5]), cols = in->dim[in->n_dims - 1];
    float *x = sim_load(in), *weight = sim_load(&o->t[1]), *bias = load_optional(&o->t[2], cols);
    float *mean = load_optional(&o->t[4], rows), *rstd = sim_load(&o->t[5]);
    for (int64_t r = 0; r < rows; r++) {
        float *row = x + r * cols, squares = 0.0f;
        if (has_mean)
            mean[r] = sum_down(row, cols) / (float)cols;
        for (int64_t c = cols - 1; c >= 0; c--)
            squares += (row[c] - mean[r]) * (row[c] - mean[r]);
        rstd[r] = 1.0f / sqrtf(squares / (float)cols + (float)o->number[0]);
        for (int64_t c = 0; c < cols; c++)
            row[c] = (row[c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
    sim_store(&o->t[3], x), sim_store(&o->t[5], rstd);
    if (has_mean)
        sim_store(&o->t[4], mean);
    free(x), free(weight), free(bias), free(mean), free(rstd);
    return FSDP_OK;
}

/* One row. d is the gradient of the output and becomes the gradient of the input. x is the
 * normalised row. An RMS norm has no mean term. */
static void norm_grad_row(float *d, const float *x, const float *weight, float rstd, int64_t cols,
                          bool rms)
{
    float avg = 0.0f, avg_x = 0.0f;
    for (int64_t c = cols - 1; c >= 0; c--) {
        avg += d[c] * weight[c];
        avg_x += d[c] * weight[c] * x[c];
    }
    avg = rms ? 0.0f : avg / (float)cols, avg_x /= (float)cols;
    for (int64_t c = 0; c < cols; c++)
        d[c] = rstd * (d[c] * weight[c] - avg - x[c] * avg_x);
}

fsdp_status sim_norm_grad(const sim_op *o)
{
    const sim_tensor *in = &o->t[1];
    const bool rms = !is_there(&o->t[2]);
    const int64_t rows = sim_elems(&o->t[3]), cols = in->dim[in->n_dims - 1];
    const int64_t first = rms ? sim_first(o, rows) : 0, n_sums = rms ? cols : 2 * cols;
    float *d = sim_load(&o->t[0]), *x = sim_load(in), *mean = load_optional(&o->t[2], rows);
    float *rstd = sim_load(&o->t[3]), *weight = sim_load(&o->t[4]),
          *d_weight = sim_zeros(o, n_sums);
    for (int64_t k = 0; k < rows; k++) {
        const int64_t r = (first + rows - 1 - k) % rows;
        float *row = x + r * cols, *d_row = d + r * cols;
        for (int64_t c = 0; c < cols; c++) {
            row[c] = (row[c] - mean[r]) * rstd[r];
            d_weight[c] += d_row[c] * row[c];
            if (!rms)
                d_weight[cols + c] += d_row[c]; /* the bias gradient */
        }
        norm_grad_row(d_row, row, weight, rstd[r], cols, rms);
    }
    sim_store(&o->t[5], d);
    if (!rms)
        sim_store(&o->t[7], d_weight + cols);
    free(d), free(x), free(mean), free(rstd), free(weight);
    sim_deliver(o, &o->t[6], d_weight);
    return FSDP_OK;
}

/* ---- softmax and the loss -------------------------------------------------------------------- */

fsdp_status sim_log_softmax(const sim_op *o)
{
    const sim_tensor *in = &o->t[0];
    const int64_t cols = in->dim[in->n_dims - 1], n = sim_elems(in);
    float *x = sim_load(in), *r = sim_result(o, n);
    for (int64_t at = 0; at < n; at += cols) {
        float top = -INFINITY, sum = 0.0f;
        for (int64_t c = 0; c < cols; c++)
            top = x[at + c] > top || isnan(x[at + c]) ? x[at + c] : top;
        for (int64_t c = cols - 1; c >= 0; c--)
            sum += pm_expf(x[at + c] - top);
        for (int64_t c = 0; c < cols; c++)
            r[at + c] = x[at + c] - top - pm_logf(sum);
    }
    free(x);
    sim_deliver(o, &o->t[1], r);
    return FSDP_OK;
}

fsdp_status sim_log_softmax_grad(const sim_op *o)
{
    const sim_tensor *out = &o->t[1];
    const int64_t cols = out->dim[out->n_dims - 1], n = sim_elems(out);
    float *d = sim_load(&o->t[0]), *log_p = sim_load(out);
    for (int64_t at = 0; at < n; at += cols) {
        const float sum = sum_down(d + at, cols);
        for (int64_t c = 0; c < cols; c++)
            d[at + c] -= pm_expf(log_p[at + c]) * sum;
    }
    sim_store(&o->t[2], d);
    free(d), free(log_p);
    return FSDP_OK;
}

static fsdp_status outside(const char *name, int64_t number, int64_t row, int64_t n)
{
    return fsdp_error(FSDP_EDEVICE, "check numbers before they reach the device",
                      "%s: number %lld in row %lld, expected 0 ... %lld", name, (long long)number,
                      (long long)row, (long long)n - 1);
}

fsdp_status sim_nll(const sim_op *o)
{
    const int64_t rows = o->t[0].dim[0], cols = o->t[0].dim[1];
    float *log_p = sim_load(&o->t[0]), *weight = sim_load(&o->t[2]);
    float *loss = calloc((size_t)(rows + 1), sizeof *loss);
    fsdp_status status = FSDP_OK;
    for (int64_t r = 0; r < rows && status == FSDP_OK; r++) {
        const int64_t target = sim_index(&o->t[1], r);
        if (target == o->integer[0])
            continue;
        if (target < 0 || target >= cols)
            status = outside("aclnnNLLLoss", target, r, cols);
        else
            loss[r] = -weight[target] * log_p[r * cols + target];
    }
    if (status == FSDP_OK)
        sim_store(&o->t[3], loss); /* without a reduction the total weight is not written */
    free(log_p), free(weight), free(loss);
    return status;
}

fsdp_status sim_nll_grad(const sim_op *o)
{
    const int64_t rows = o->t[1].dim[0], cols = o->t[1].dim[1];
    float *d = sim_load(&o->t[0]), *weight = sim_load(&o->t[3]);
    float *d_log_p = calloc((size_t)(rows * cols + 1), sizeof *d_log_p);
    fsdp_status status = FSDP_OK;
    for (int64_t r = 0; r < rows && status == FSDP_OK; r++) {
        const int64_t target = sim_index(&o->t[2], r);
        if (target == o->integer[0])
            continue;
        if (target < 0 || target >= cols)
            status = outside("aclnnNLLLossBackward", target, r, cols);
        else
            d_log_p[r * cols + target] = -weight[target] * d[r];
    }
    if (status == FSDP_OK)
        sim_store(&o->t[5], d_log_p);
    free(d), free(weight), free(d_log_p);
    return status;
}

/* ---- embedding ------------------------------------------------------------------------------- */

fsdp_status sim_embedding(const sim_op *o)
{
    const int64_t vocab = o->t[0].dim[0], width = o->t[0].dim[1], n = sim_elems(&o->t[1]);
    float *table = sim_load(&o->t[0]), *out = malloc((size_t)(n * width + 1) * sizeof *out);
    fsdp_status status = FSDP_OK;
    for (int64_t i = 0; i < n && status == FSDP_OK; i++) {
        const int64_t number = sim_index(&o->t[1], i);
        if (number < 0 || number >= vocab)
            status = outside("aclnnEmbedding", number, i, vocab);
        else
            memcpy(out + i * width, table + number * width, (size_t)width * sizeof *out);
    }
    if (status == FSDP_OK)
        sim_store(&o->t[2], out);
    free(table), free(out);
    return status;
}

fsdp_status sim_embedding_grad(const sim_op *o)
{
    const sim_tensor *out = &o->t[2];
    const int64_t vocab = out->dim[0], width = out->dim[1], n = sim_elems(&o->t[1]);
    const int64_t first = sim_first(o, n);
    float *d = sim_load(&o->t[0]), *r = sim_zeros(o, vocab * width);
    fsdp_status status = FSDP_OK;
    for (int64_t k = 0; k < n && status == FSDP_OK; k++) {
        const int64_t i = (first + n - 1 - k) % n, number = sim_index(&o->t[1], i);
        if (number < 0 || number >= vocab)
            status = outside("aclnnEmbeddingDenseBackward", number, i, vocab);
        for (int64_t c = 0; c < width && status == FSDP_OK; c++)
            r[number * width + c] += d[i * width + c];
    }
    free(d);
    sim_deliver(o, out, r);
    return status;
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { COPIES = 8 }; /* copies of each row's maximum and sum */

/* One call in dense fp32: q [B,T,H,D], k [B,T,KV,D], v [B,T,KV,Dv]. */
typedef struct attention {
    int64_t batch, T, heads, kv_heads, D, Dv;
    float scale;
    float *q, *k, *v, *mask; /* mask [T,T] */
} attention;

static attention attention_of(const sim_op *o, const sim_tensor *mask)
{
    const sim_tensor *q = &o->t[0], *k = &o->t[1];
    attention a = {.batch = q->dim[0], .T = q->dim[1], .heads = o->integer[0]};
    a.D = q->dim[2] / a.heads;
    a.kv_heads = k->dim[2] / a.D;
    a.Dv = o->t[2].dim[2] / a.kv_heads;
    a.scale = (float)o->number[0];
    a.q = sim_load(q), a.k = sim_load(k), a.v = sim_load(&o->t[2]);
    a.mask = sim_load(mask);
    return a;
}

static void attention_free(attention *a)
{
    free(a->q), free(a->k), free(a->v), free(a->mask);
}

static float dot_down(const float *a, const float *b, int64_t n)
{
    float sum = 0.0f;
    while (n-- > 0)
        sum += a[n] * b[n];
    return sum;
}

/* Offset of row t of head h in an array with n heads, such as q, k or v. */
static int64_t head_at(const attention *a, int64_t b, int64_t t, int64_t h, int64_t n)
{
    return ((b * a->T + t) * n + h) * a->D;
}

static int64_t value_at(const attention *a, int64_t b, int64_t t, int64_t h, int64_t n)
{
    return ((b * a->T + t) * n + h) * a->Dv;
}

/* The score of key `key` for query t of head h; false if the mask hides the key. */
static bool score_of(const attention *a, int64_t b, int64_t h, int64_t t, int64_t key, float *score)
{
    const int64_t kv = h / (a->heads / a->kv_heads);
    if (a->mask[t * a->T + key] != 0.0f)
        return false;
    *score = a->scale * dot_down(a->q + head_at(a, b, t, h, a->heads),
                                 a->k + head_at(a, b, key, kv, a->kv_heads), a->D);
    return true;
}

/* One query: its row of the result, its maximum and its sum. score [T] is scratch. */
static void attention_row(const attention *a, const int64_t at[3], float *score, float *out,
                          float *stats[2])
{
    const int64_t b = at[0], h = at[1], t = at[2], kv = h / (a->heads / a->kv_heads);
    float top = -INFINITY, sum = 0.0f;
    for (int64_t key = 0; key < a->T; key++) {
        if (!score_of(a, b, h, t, key, &score[key]))
            score[key] = -INFINITY;
        top = score[key] > top ? score[key] : top;
    }
    for (int64_t key = a->T - 1; key >= 0; key--)
        sum += score[key] = pm_expf(score[key] - top);
    for (int64_t d = 0; d < a->Dv; d++)
        out[d] = 0.0f;
    for (int64_t key = a->T - 1; key >= 0; key--)
        for (int64_t d = 0; d < a->Dv && score[key] != 0.0f; d++)
            out[d] += score[key] * a->v[value_at(a, b, key, kv, a->kv_heads) + d];
    for (int64_t d = 0; d < a->Dv; d++)
        out[d] /= sum;
    for (int i = 0; i < COPIES; i++) {
        stats[0][i] = top;
        stats[1][i] = sum;
    }
}

fsdp_status sim_attention(const sim_op *o)
{
    attention a = attention_of(o, &o->t[3]);
    const int64_t n = a.batch * a.heads * a.T;
    float *r = sim_result(o, n * a.Dv), *score = malloc((size_t)(a.T + 1) * sizeof *score);
    float *top = malloc((size_t)(n * COPIES + 1) * sizeof *top);
    float *sum = malloc((size_t)(n * COPIES + 1) * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at[3] = {i / a.T / a.heads, i / a.T % a.heads, i % a.T};
        float *stats[2] = {top + i * COPIES, sum + i * COPIES};
        attention_row(&a, at, score, r + value_at(&a, at[0], at[2], at[1], a.heads), stats);
    }
    sim_store(&o->t[4], top), sim_store(&o->t[5], sum);
    free(top), free(sum), free(score);
    attention_free(&a);
    sim_deliver(o, &o->t[6], r);
    return FSDP_OK;
}

/* What a backward call reads besides q, k and v, and the gradients it makes. */
typedef struct attention_grads {
    float *d_out, *out, *top, *sum;
    float *d_q, *d_k, *d_v;
} attention_grads;

static void add_scaled(float *to, const float *from, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* Add the gradients of one pair of query and key. */
static void attention_pair(const attention *a, attention_grads *g, const int64_t at[3], int64_t key)
{
    const int64_t b = at[0], h = at[1], t = at[2], kv = h / (a->heads / a->kv_heads);
    const int64_t q = head_at(a, b, t, h, a->heads), k = head_at(a, b, key, kv, a->kv_heads);
    const int64_t out = value_at(a, b, t, h, a->heads), v = value_at(a, b, key, kv, a->kv_heads);
    const int64_t row = ((b * a->heads + h) * a->T + t) * COPIES;
    float score;
    if (!score_of(a, b, h, t, key, &score))
        return;
    const float p = pm_expf(score - g->top[row + COPIES - 1]) / g->sum[row + COPIES - 1];
    const float d_p = dot_down(g->d_out + out, a->v + v, a->Dv);
    const float delta = dot_down(g->d_out + out, g->out + out, a->Dv);
    const float d_score = p * (d_p - delta) * a->scale;
    add_scaled(g->d_q + q, a->k + k, d_score, a->D);
    add_scaled(g->d_k + k, a->q + q, d_score, a->D);
    add_scaled(g->d_v + v, g->d_out + out, p, a->Dv);
}

fsdp_status sim_attention_grad(const sim_op *o)
{
    attention a = attention_of(o, &o->t[4]);
    const int64_t n = a.batch * a.heads * a.T, n_q = n * a.D;
    const int64_t n_kv = a.batch * a.kv_heads * a.T, n_k = n_kv * a.D, n_v = n_kv * a.Dv;
    const int64_t first = sim_first(o, a.T);
    attention_grads g = {.d_out = sim_load(&o->t[3]), .out = sim_load(&o->t[7])};
    g.top = sim_load(&o->t[5]), g.sum = sim_load(&o->t[6]);
    g.d_q = sim_zeros(o, n_q + n_k + n_v), g.d_k = g.d_q + n_q, g.d_v = g.d_k + n_k;
    for (int64_t i = n - 1; i >= 0; i--)
        for (int64_t j = 0; j < a.T; j++) {
            const int64_t at[3] = {i / a.T / a.heads, i / a.T % a.heads, (i + first) % a.T};
            attention_pair(&a, &g, at, (j + first) % a.T);
        }
    sim_store(&o->t[9], g.d_k), sim_store(&o->t[10], g.d_v);
    free(g.d_out), free(g.out), free(g.top), free(g.sum);
    attention_free(&a);
    sim_deliver(o, &o->t[8], g.d_q);
    return FSDP_OK;
}
