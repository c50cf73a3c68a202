/* npu_ops_token.c -- operations on token numbers: the embedding, and the loss. See npu_ops.h.
 *
 * A number outside the vocabulary would make an operator read or write outside its arrays. So
 * numbers are first copied to the host, in order of the stream. The host checks them, reports the
 * first bad one, and copies them back with 0 in place of bad ones. This costs 4 bytes per token
 * each way, and two host tasks. */
#include "lab6_npu/npu_ops.h"
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

typedef enum number_kind { TOKENS, TARGETS } number_kind;

/* Numbers on the host, and the first bad one. */
typedef struct host_numbers {
    size_t bad; /* its index; n: none is bad */
    int32_t bad_number;
    int32_t numbers[]; /* [n] */
} host_numbers;

typedef struct check_args {
    host_numbers *host;
    size_t n, vocab;
    number_kind kind;
} check_args;

static fsdp_status check_numbers(void *args, int n_threads)
{
    const check_args *a = args;
    host_numbers *host = a->host;
    (void)n_threads;
    host->bad = a->n;
    for (size_t i = 0; i < a->n; i++) {
        const int32_t number = host->numbers[i];
        if ((number >= 0 && (size_t)number < a->vocab) ||
            (a->kind == TARGETS && number == NO_TARGET))
            continue;
        if (host->bad == a->n)
            host->bad = i, host->bad_number = number;
        host->numbers[i] = 0;
    }
    return FSDP_OK;
}

/* A separate task, after the copy of checked numbers: copies after a failed task may be skipped. */
static fsdp_status report_number(void *args, int n_threads)
{
    const check_args *a = args;
    (void)n_threads;
    if (a->host->bad == a->n)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "check that the data was made for this vocabulary",
                      a->kind == TOKENS ? "embedding: token %d at position %zu, expected 0 ... %zu"
                                        : "cross_entropy: target %d in row %zu, expected 0 ... %zu",
                      (int)a->host->bad_number, a->host->bad, a->vocab - 1);
}

/* Copy numbers to the host, check them, and copy them to `checked` on the device. */
static fsdp_status numbers_check(stream *s, const int32_t *numbers, const check_args *a,
                                 int32_t *checked)
{
    const size_t bytes = a->n * sizeof *numbers;
    const mem_access touches = {a->host, sizeof *a->host + bytes, .writes = true};
    TRY(device_copy(s, a->host->numbers, numbers, bytes));
    TRY(npu_host_task(s, check_numbers, a, sizeof *a, &touches));
    TRY(device_copy(s, checked, a->host->numbers, bytes));
    return npu_host_task(s, report_number, a, sizeof *a, &touches);
}

/* *out [a.n] = the checked numbers [a.n], which are on the device. The caller owns *out. */
static fsdp_status numbers_get(stream *s, const int32_t *numbers, check_args a, int32_t **out)
{
    const size_t bytes = a.n * sizeof *numbers;
    void *host, *checked = NULL;
    *out = NULL;
    TRY(device_alloc_host(s, MEM_OTHER, sizeof *a.host + bytes, "numbers to check", &host));
    a.host = host;
    fsdp_status status = device_alloc(s, MEM_OTHER, bytes, "checked numbers", &checked);
    IF_OK(status, numbers_check(s, numbers, &a, checked));
    device_free(s, host);
    if (status != FSDP_OK)
        device_free(s, checked);
    else
        *out = checked;
    return status;
}

static npu_view numbers_view(const int32_t *numbers, size_t n)
{
    return view_1d(numbers, ACL_INT32, n);
}

/* ---- embedding ------------------------------------------------------------------------------- */

/* TOKENS_CHECKED(op) defines npu_op, which passes its arguments, with checked tokens, to op_issue,
 * an accel_issue_fn. */
#define TOKENS_CHECKED(op)                                                                         \
    fsdp_status npu_##op(stream *s, const op##_args *a)                                            \
    {                                                                                              \
        const check_args check = {NULL, a->batch * a->seq_len, a->vocab, TOKENS};                  \
        op##_args checked = *a;                                                                    \
        int32_t *tokens;                                                                           \
        const op_work work = op##_work(a);                                                         \
        if (work.ends)                                                                             \
            return work.status;                                                                    \
        TRY(numbers_get(s, a->tokens, check, &tokens));                                            \
        checked.tokens = tokens;                                                                   \
        fsdp_status status = accel_issue(s, op##_issue, &checked, op##_work(&checked));            \
        device_free(s, tokens);                                                                    \
        return status;                                                                             \
    }

static fsdp_status embedding_issue(stream *s, const void *args)
{
    const embedding_args *a = args;
    const aclDataType type = npu_type(a->type);
    const size_t rows = a->batch * a->seq_len;
    const npu_view out = view_3d(a->out, type, a->batch, a->seq_len, a->width);
    TRY(aclnn_embedding(s, view_2d(a->out, type, rows, a->width),
                        view_2d(a->wte, type, a->vocab, a->width), numbers_view(a->tokens, rows)));
    return a->wpe == NULL ? FSDP_OK
                          : aclnn_add(s, out, out, view_2d(a->wpe, type, a->seq_len, a->width));
}

TOKENS_CHECKED(embedding)

/* Add to d_wte; d_out is fp32. The operator overwrites its table, so it gets a scratch table. */
static fsdp_status token_grads(stream *s, const embedding_backward_args *a, const float *d_out)
{
    const size_t rows = a->batch * a->seq_len, elems = a->vocab * a->width;
    float *table;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "gradient of a table", &table));
    fsdp_status status = aclnn_embedding_backward(s, view_2d(table, ACL_FLOAT, a->vocab, a->width),
                                                  view_2d(d_out, ACL_FLOAT, rows, a->width),
                                                  numbers_view(a->tokens, rows));
    IF_OK(status, npu_add_grad(s, a->d_wte, table, elems));
    device_free(s, table);
    return status;
}

/* Add the sum over the batch to d_wpe [seq_len,C]. */
static fsdp_status position_grads(stream *s, const embedding_backward_args *a, const float *d_out)
{
    const size_t elems = a->seq_len * a->width;
    float *sum;
    TRY(device_alloc_f32(s, MEM_OTHER, elems, "gradient of positions", &sum));
    fsdp_status status =
        aclnn_reduce_sum(s, view_2d(sum, ACL_FLOAT, a->seq_len, a->width),
                         view_3d(d_out, ACL_FLOAT, a->batch, a->seq_len, a->width));
    IF_OK(status, npu_add_grad(s, a->d_wpe, sum, elems));
    device_free(s, sum);
    return status;
}

static fsdp_status embedding_backward_issue(stream *s, const void *args)
{
    const embedding_backward_args *a = args;
    const float *d_out;
    float *scratch;
    fsdp_status status =
        npu_widen(s, a->d_out, a->type, a->batch * a->seq_len * a->width, &d_out, &scratch);
    IF_OK(status, token_grads(s, a, d_out));
    if (status == FSDP_OK && a->d_wpe != NULL)
        status = position_grads(s, a, d_out);
    device_free(s, scratch);
    return status;
}

TOKENS_CHECKED(embedding_backward)

/* ---- cross_entropy --------------------------------------------------------------------------- */

/* Rows are computed in groups, so that scratch memory does not grow with the batch: at most this
 * many logits, or one row. */
enum { MOST_LOGITS = 1 << 22 };

/* A call whose targets are checked, and its scratch. */
typedef struct loss_call {
    const cross_entropy_args *a;
    float *row_loss;       /* [rows] */
    float *classes, *ones; /* [vocab], [rows of a group]: all 1 */
    float *total;          /* [1] */
    float *logits, *log_p; /* of a group of rows; logits as fp32, only for bf16 */
} loss_call;

static size_t rows_at_once(const cross_entropy_args *a)
{
    FSDP_ASSERT(a->vocab > 0);
    const size_t most = MOST_LOGITS / a->vocab;
    return most == 0 ? 1 : most < a->rows ? most : a->rows;
}

/* Rows first ... first + n - 1 of x, logits or d_logits. */
static npu_view rows_of(const cross_entropy_args *a, const void *x, size_t stride, size_t first,
                        size_t n)
{
    const size_t apart = row_stride(stride, a->vocab);
    const char *at = (const char *)x + first * apart * dtype_bytes(a->type);
    return view_rows(at, npu_type(a->type), n, a->vocab, apart);
}

/* d_logits of n rows: softmax - onehot, from x->log_p. May overwrite c->logits. */
static fsdp_status loss_grads(stream *s, const loss_call *c, const nll_views *x, size_t first)
{
    const cross_entropy_args *a = c->a;
    const size_t n = (size_t)x->log_p.dim[0];
    const npu_view d_logits = rows_of(a, a->d_logits, a->d_logits_stride, first, n);
    const npu_view d = a->type == DTYPE_F32 ? d_logits : view_2d(c->logits, ACL_FLOAT, n, a->vocab);
    float *picked;
    TRY(device_alloc_f32(s, MEM_OTHER, n * a->vocab, "gradient of log p", &picked));
    const npu_view d_log_p = view_2d(picked, ACL_FLOAT, n, a->vocab);
    fsdp_status status = aclnn_nll_loss_backward(s, d_log_p, view_f32(c->ones, n), x);
    IF_OK(status, aclnn_log_softmax_backward(s, d, d_log_p, x->log_p));
    if (status == FSDP_OK && a->type != DTYPE_F32)
        status = aclnn_cast(s, d_logits, d);
    device_free(s, picked);
    return status;
}

/* Compute the losses of rows first ... first + n - 1, and their gradients. */
static fsdp_status loss_rows(stream *s, const loss_call *c, size_t first, size_t n)
{
    const cross_entropy_args *a = c->a;
    const npu_view stored = rows_of(a, a->logits, a->logits_stride, first, n);
    const npu_view logits =
        a->type == DTYPE_F32 ? stored : view_2d(c->logits, ACL_FLOAT, n, a->vocab);
    const nll_views x = {.log_p = view_2d(c->log_p, ACL_FLOAT, n, a->vocab),
                         .target = numbers_view(a->targets + first, n),
                         .weight = view_f32(c->classes, a->vocab),
                         .total = view_f32(c->total, 1)};
    if (a->type != DTYPE_F32)
        TRY(aclnn_cast(s, logits, stored));
    TRY(aclnn_log_softmax(s, x.log_p, logits));
    TRY(aclnn_nll_loss(s, view_f32(c->row_loss + first, n), &x));
    return a->d_logits != NULL ? loss_grads(s, c, &x, first) : FSDP_OK;
}

static fsdp_status loss_issue(stream *s, const void *args)
{
    loss_call c = *(const loss_call *)args;
    const size_t rows = c.a->rows, vocab = c.a->vocab, step = rows_at_once(c.a);
    const size_t widened = c.a->type == DTYPE_F32 ? 0 : step * vocab;
    const size_t ones = vocab + (rows < step ? rows : step);
    TRY(device_alloc_f32(s, MEM_OTHER, ones + 1 + widened + step * vocab, "rows of a loss",
                         &c.classes));
    c.ones = c.classes + vocab, c.total = c.classes + ones;
    c.log_p = c.total + 1, c.logits = c.log_p + step * vocab;
    fsdp_status status = aclnn_fill(s, view_f32(c.classes, ones + 1), 1);
    for (size_t first = 0; first < rows && status == FSDP_OK; first += step)
        status = loss_rows(s, &c, first, rows - first < step ? rows - first : step);
    device_free(s, c.classes);
    return status;
}

/* Losses on the host. */
typedef struct host_losses {
    double total;
    float loss[]; /* [rows]; the sum is stored in loss[0] */
} host_losses;

typedef struct sum_args {
    host_losses *host;
    size_t rows;
    bool continues; /* start from host->total instead of 0 */
} sum_args;

static fsdp_status sum_losses(void *args, int n_threads)
{
    const sum_args *a = args;
    double total = a->continues ? a->host->total : 0.0;
    (void)n_threads;
    for (size_t r = 0; r < a->rows; r++)
        total += (double)a->host->loss[r];
    a->host->total = total;
    a->host->loss[0] = (float)total;
    return FSDP_OK;
}

/* *a->loss = the sum of row_loss [rows], starting from *a->total if that is given. The host adds in
 * double; x is host memory for the rows. */
static fsdp_status loss_sum(stream *s, const cross_entropy_args *a, const float *row_loss,
                            host_losses *x)
{
    const size_t bytes = a->rows * sizeof *row_loss;
    const mem_access touches = {x, sizeof *x + bytes, .writes = true};
    const sum_args sum = {x, a->rows, a->total != NULL};
    if (a->total != NULL)
        TRY(device_copy(s, &x->total, a->total, sizeof x->total));
    TRY(device_copy(s, x->loss, row_loss, bytes));
    TRY(npu_host_task(s, sum_losses, &sum, sizeof sum, &touches));
    if (a->total != NULL)
        TRY(device_copy(s, a->total, &x->total, sizeof x->total));
    return device_copy(s, a->loss, x->loss, sizeof *a->loss);
}

static fsdp_status loss_deliver(stream *s, const cross_entropy_args *a, const float *row_loss)
{
    void *host;
    TRY(device_alloc_host(s, MEM_OTHER, sizeof(host_losses) + a->rows * sizeof *row_loss,
                          "losses of rows", &host));
    const fsdp_status status = loss_sum(s, a, row_loss, host);
    device_free(s, host);
    return status;
}

fsdp_status npu_cross_entropy(stream *s, const cross_entropy_args *a)
{
    cross_entropy_args checked = *a;
    loss_call call = {.a = &checked};
    int32_t *targets;
    TRY(cross_entropy_work(a).status);
    if (a->rows == 0)
        return device_zero(s, a->loss, sizeof *a->loss);
    TRY(numbers_get(s, a->targets, (check_args){NULL, a->rows, a->vocab, TARGETS}, &targets));
    checked.targets = targets;
    fsdp_status status = device_alloc_f32(s, MEM_OTHER, a->rows, "losses of rows", &call.row_loss);
    op_work work = cross_entropy_work(&checked);
    op_writes(&work, call.row_loss, a->rows * sizeof(float));
    IF_OK(status, accel_issue(s, loss_issue, &call, work));
    IF_OK(status, loss_deliver(s, a, call.row_loss));
    device_free(s, call.row_loss);
    device_free(s, targets);
    return status;
}
