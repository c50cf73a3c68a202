/* npu_ops_optim.c -- the optimizers' updates, and the norm of gradients. See npu_ops.h.
 *
 * An update performs the recipe's operations (ops.h) in the same order, with one rounding each. So
 * an element's bits do not depend on where its array is cut. aclnnApplyAdamWV2 would be one call,
 * but it computes lr, bias correction and decay in fp32 and in another order. */
#include "common/ops/ranges.h"
#include "common/ops/row_elem.h"
#include "lab6_npu/npu_ops.h"

/* Elements of a piece, so that scratch memory does not grow with the shard. */
enum { PIECE_ELEMS = 1 << 22 };

static size_t piece_elems(size_t elems, size_t at)
{
    return elems - at < PIECE_ELEMS ? elems - at : PIECE_ELEMS;
}

/* Updates n elements from `at` on; scratch [n_terms * n]. */
typedef fsdp_status (*piece_fn)(stream *s, const void *args, size_t at, size_t n, float *scratch);

static fsdp_status in_pieces(stream *s, piece_fn piece, const void *args, size_t elems,
                             size_t n_terms)
{
    float *scratch;
    TRY(device_alloc_f32(s, MEM_OTHER, n_terms * piece_elems(elems, 0), "terms of an update",
                         &scratch));
    fsdp_status status = FSDP_OK;
    for (size_t at = 0; at < elems && status == FSDP_OK; at += PIECE_ELEMS)
        status = piece(s, args, at, piece_elems(elems, at), scratch);
    device_free(s, scratch);
    return status;
}

/* IN_PIECES(op, of_range, n_terms) defines npu_op, which runs op_piece on pieces of the ranges of
 * its arrays. */
#define IN_PIECES(op, of_range, n_terms)                                                           \
    static fsdp_status op##_issue(stream *s, const void *args)                                     \
    {                                                                                              \
        const op##_args *a = args;                                                                 \
        decay_range r;                                                                             \
        for (int i = 0; range_next(&a->ranges, &i, 0, a->elems, &r);) {                            \
            const op##_args part = of_range(a, r);                                                 \
            TRY(in_pieces(s, op##_piece, &part, part.elems, n_terms));                             \
        }                                                                                          \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    ISSUED(op)

/* *g = *g * *coef, in scratch; without coef, *g stays as it is. */
static fsdp_status scaled_grad(stream *s, npu_view *g, npu_view scratch, const float *coef)
{
    if (coef == NULL)
        return FSDP_OK;
    TRY(aclnn_mul(s, scratch, *g, view_f32(coef, 1)));
    *g = scratch;
    return FSDP_OK;
}

/* average = beta * average + rest * x; t is scratch memory, and x may be t. */
static fsdp_status move_average(stream *s, npu_view average, float beta, npu_view x, float rest,
                                npu_view t)
{
    TRY(aclnn_muls(s, average, average, beta));
    TRY(aclnn_muls(s, t, x, rest));
    return aclnn_add(s, average, average, t);
}

static fsdp_status adamw_piece(stream *s, const void *args, size_t at, size_t n, float *scratch)
{
    const adamw_args *a = args;
    const npu_view p = view_f32(a->param + at, n), m = view_f32(a->m + at, n);
    const npu_view v = view_f32(a->v + at, n);
    const npu_view t = view_f32(scratch, n), root = view_f32(scratch + n, n);
    npu_view g = view_f32(a->grad + at, n);
    TRY(scaled_grad(s, &g, view_f32(scratch + 2 * n, n), a->grad_coef));
    TRY(aclnn_muls(s, t, p, a->decay));
    TRY(aclnn_sub_from(s, p, t));
    TRY(move_average(s, m, a->beta1, g, a->one_minus_beta1, t));
    TRY(aclnn_mul(s, t, g, g));
    TRY(move_average(s, v, a->beta2, t, a->one_minus_beta2, t));
    TRY(aclnn_sqrt(s, root, v));
    TRY(aclnn_divs_by(s, root, a->sqrt_bias2));
    TRY(aclnn_adds_to(s, root, a->eps));
    TRY(aclnn_muls(s, t, m, a->step_size));
    TRY(aclnn_div_by(s, t, root));
    return aclnn_sub_from(s, p, t);
}

IN_PIECES(adamw, adamw_of_range, 3)

/* *g = *g + weight_decay * p, in scratch t. */
static fsdp_status decayed_grad(stream *s, npu_view *g, npu_view p, float weight_decay, npu_view t)
{
    TRY(aclnn_muls(s, t, p, weight_decay));
    TRY(aclnn_add(s, t, t, *g));
    *g = t;
    return FSDP_OK;
}

/* Add g to the momentum buffer, and set g to the direction of the step; t is scratch memory. */
static fsdp_status add_momentum(stream *s, const sgd_args *a, npu_view buffer, npu_view g,
                                npu_view t)
{
    const float momentum = (float)a->config.momentum;
    TRY(aclnn_muls(s, buffer, buffer, momentum));
    TRY(aclnn_add(s, buffer, buffer, g));
    if (!a->config.nesterov)
        return aclnn_copy(s, g, buffer);
    TRY(aclnn_muls(s, t, buffer, momentum));
    return aclnn_add(s, g, g, t);
}

static fsdp_status sgd_piece(stream *s, const void *args, size_t at, size_t n, float *scratch)
{
    const sgd_args *a = args;
    const npu_view p = view_f32(a->param + at, n), t = view_f32(scratch, n);
    const npu_view scaled = view_f32(scratch + n, n);
    npu_view g = view_f32(a->grad + at, n);
    TRY(scaled_grad(s, &g, scaled, a->grad_coef));
    TRY(decayed_grad(s, &g, p, a->weight_decay, t));
    if (a->state[0] != NULL)
        TRY(add_momentum(s, a, view_f32(a->state[0] + at, n), g, scaled));
    TRY(aclnn_muls(s, g, g, a->lr));
    return aclnn_sub_from(s, p, g);
}

IN_PIECES(sgd, update_of_range, 2)

static fsdp_status adadelta_piece(stream *s, const void *args, size_t at, size_t n, float *scratch)
{
    const adadelta_args *a = args;
    const float rho = (float)a->config.rho, rest = (float)(1.0 - a->config.rho);
    const float eps = (float)a->config.eps;
    const npu_view p = view_f32(a->param + at, n), t = view_f32(scratch + n, n);
    const npu_view square_avg = view_f32(a->state[0] + at, n);
    const npu_view acc_delta = view_f32(a->state[1] + at, n);
    const npu_view delta = view_f32(scratch + 2 * n, n), root = view_f32(scratch + 3 * n, n);
    npu_view g = view_f32(a->grad + at, n);
    TRY(scaled_grad(s, &g, delta, a->grad_coef));
    TRY(decayed_grad(s, &g, p, a->weight_decay, view_f32(scratch, n)));
    TRY(aclnn_mul(s, t, g, g));
    TRY(move_average(s, square_avg, rho, t, rest, t));
    TRY(aclnn_copy(s, t, acc_delta));
    TRY(aclnn_adds_to(s, t, eps));
    TRY(aclnn_sqrt(s, delta, t));
    TRY(aclnn_copy(s, t, square_avg));
    TRY(aclnn_adds_to(s, t, eps));
    TRY(aclnn_sqrt(s, root, t));
    TRY(aclnn_div_by(s, delta, root));
    TRY(aclnn_mul(s, delta, delta, g));
    TRY(aclnn_mul(s, t, delta, delta));
    TRY(move_average(s, acc_delta, rho, t, rest, t));
    TRY(aclnn_muls(s, delta, delta, a->lr));
    return aclnn_sub_from(s, p, delta);
}

IN_PIECES(adadelta, update_of_range, 4)

/* ---- the norm: on the host, in order of the stream ------------------------------------------- */

/* The host memory of sum_squares and clip_coef. */
typedef struct norm_host {
    rsum sum;
    float norm, coef;
    float x[]; /* [up to PIECE_ELEMS] */
} norm_host;

typedef struct squares_args {
    norm_host *host;
    size_t elems;
} squares_args;

static fsdp_status add_squares(void *args, int n_threads)
{
    const squares_args *a = args;
    (void)n_threads;
    rsum_add_squares(&a->host->sum, a->host->x, a->elems);
    return FSDP_OK;
}

/* All pieces go through one buffer: copy, add, copy ... in order of the stream. */
static fsdp_status squares_on_host(stream *s, const sum_squares_args *a, norm_host *host)
{
    const size_t bytes = sizeof *host + piece_elems(a->elems, 0) * sizeof *a->x;
    squares_args piece = {.host = host};
    launch_config add = {.fn = add_squares,
                         .args = &piece,
                         .args_bytes = sizeof piece,
                         .on_host = true,
                         .work = sum_squares_work(a).info,
                         .accesses = &(mem_access){host, bytes, .writes = true},
                         .n_accesses = 1};
    TRY(device_copy(s, &host->sum, a->sum, sizeof host->sum));
    for (size_t at = 0; at < a->elems; at += PIECE_ELEMS) {
        piece.elems = piece_elems(a->elems, at);
        TRY(device_copy(s, host->x, a->x + at, piece.elems * sizeof *a->x));
        TRY(stream_launch_work(s, &add));
        add.work = (work_info){0}; /* the work is counted once */
        add.name = "sum_squares";
    }
    return device_copy(s, a->sum, &host->sum, sizeof host->sum);
}

fsdp_status npu_sum_squares(stream *s, const sum_squares_args *a)
{
    const size_t bytes = sizeof(norm_host) + piece_elems(a->elems, 0) * sizeof *a->x;
    void *host;
    decay_range r;
    if (a->elems == 0)
        return FSDP_OK;
    TRY(device_alloc_host(s, MEM_OTHER, bytes, "squares on the host", &host));
    fsdp_status status = FSDP_OK;
    for (int i = 0; status == FSDP_OK && range_next(&a->ranges, &i, 0, a->elems, &r);) {
        const sum_squares_args part = sum_squares_of_range(a, r);
        status = squares_on_host(s, &part, host);
    }
    device_free(s, host);
    return status;
}

typedef struct clip_args {
    norm_host *host;
    float max_norm;
} clip_args;

static fsdp_status clip_on_host(void *args, int n_threads)
{
    const clip_args *a = args;
    (void)n_threads;
    clip_elem(&(clip_coef_args){&a->host->norm, &a->host->coef, &a->host->sum, a->max_norm});
    return FSDP_OK;
}

fsdp_status npu_clip_coef(stream *s, const clip_coef_args *a)
{
    void *block;
    TRY(device_alloc_host(s, MEM_OTHER, sizeof(norm_host), "norm on the host", &block));
    norm_host *host = block;
    const launch_config clip = {.fn = clip_on_host,
                                .args = &(clip_args){host, a->max_norm},
                                .args_bytes = sizeof(clip_args),
                                .on_host = true,
                                .work = clip_coef_work(a).info,
                                .accesses = &(mem_access){host, sizeof *host, .writes = true},
                                .n_accesses = 1};
    fsdp_status status = device_copy(s, &host->sum, a->sum, sizeof host->sum);
    IF_OK(status, stream_launch_work(s, &clip));
    IF_OK(status, device_copy(s, a->norm, &host->norm, sizeof host->norm));
    IF_OK(status, device_copy(s, a->coef, &host->coef, sizeof host->coef));
    device_free(s, host);
    return status;
}
