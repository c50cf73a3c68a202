/* cpu_loss.c -- softmax cross-entropy and its gradient, for both tables.
 *
 * Rows are computed in parallel, ROW_BLOCK of them at a time; their losses are then added in row
 * order by the calling thread. A row is read three times: for its maximum, for the exponentials and
 * their sum, and to divide them; GPT-2's 200 kB are in the second cache after the first. */
#include <math.h>
#include "common/base/pmath.h"
#include "common/ops/cpu_kernels.h"

enum { ROW_BLOCK = 512 };

typedef struct loss_rows {
    const cross_entropy_args *a;
    size_t first_row;
    double *row_loss; /* [ROW_BLOCK] */
} loss_rows;

/* Elements that are treated at a time: whole vectors, so that lanes stay lanes. */
enum { PIECE = 8 * LANES };

/* The largest element, NaNs passed over; -infinity when there is nothing else. PIECE running
 * maxima, as a single one would wait for itself. */
static float row_max(const float *x, size_t n)
{
    float top[PIECE];
    for (size_t l = 0; l < PIECE; l++)
        top[l] = -INFINITY;
    for (; n >= PIECE; n -= PIECE, x += PIECE)
        for (size_t l = 0; l < PIECE; l++)
            top[l] = x[l] > top[l] ? x[l] : top[l];
    const float rest = vec_max(x, n), most = vec_max(top, PIECE);
    return rest > most ? rest : most;
}

/* e[i] = exp(x[i] - top), added to acc by lanes; n <= PIECE. e may be x. */
static inline void exp_piece(lanes *acc, const float *x, size_t n, float top, float *e)
{
    float piece[PIECE];
    for (size_t i = 0; i < n; i++)
        piece[i] = pm_expf_upto40(x[i] - top); /* never above 0 */
    for (size_t i = 0; i < n; i += LANES) {
        lanes v;
        lanes_load(&v, piece + i, n - i, 0.0f);
        *acc += v;
    }
    if (e)
        memcpy(e, piece, n * sizeof *e);
}

/* sum of exp(x[i] - top) by lanes. The exponentials are kept in `e` unless that is NULL. */
static float sum_exp(const float *x, size_t n, float top, float *e)
{
    lanes acc = {0};
    size_t i = 0;
    for (; i + PIECE <= n; i += PIECE)
        exp_piece(&acc, x + i, PIECE, top, e ? e + i : NULL);
    exp_piece(&acc, x + i, n - i, top, e ? e + i : NULL);
    return lanes_sum(&acc);
}

static fsdp_status loss_tile(const void *args, size_t tile)
{
    const loss_rows *j = args;
    const cross_entropy_args *a = j->a;
    const size_t row = j->first_row + tile;
    const float *logits = a->logits + row * a->vocab;
    float *d_logits = a->d_logits ? a->d_logits + row * a->vocab : NULL;
    const size_t target = (size_t)a->targets[row];
    const float target_logit = logits[target]; /* read first: d_logits may be logits */
    const float top = row_max(logits, a->vocab);
    const float sum = sum_exp(logits, a->vocab, top, d_logits);
    j->row_loss[tile] = pm_log((double)sum) + ((double)top - (double)target_logit);
    if (d_logits) {
        for (size_t i = 0; i < a->vocab; i++)
            d_logits[i] /= sum;
        d_logits[target] -= 1.0f;
    }
    return FSDP_OK;
}

static fsdp_status check_targets(const cross_entropy_args *a)
{
    for (size_t r = 0; r < a->rows; r++) {
        if (a->targets[r] < 0 || (size_t)a->targets[r] >= a->vocab)
            return fsdp_error(FSDP_EINVAL, "check that the data was made for this vocabulary",
                              "cross_entropy: target %d in row %zu, expected 0 ... %zu",
                              (int)a->targets[r], r, a->vocab - 1);
    }
    return FSDP_OK;
}

static fsdp_status cross_entropy_kernel(void *args, int n_threads)
{
    const cross_entropy_args *a = args;
    double row_loss[ROW_BLOCK];
    double total = 0.0;
    TRY(check_targets(a));
    for (size_t first = 0; first < a->rows; first += ROW_BLOCK) {
        const size_t n_rows = min_size(ROW_BLOCK, a->rows - first);
        const int threads = threads_for(n_threads, n_rows * a->vocab, MIN_PARALLEL_EXPS);
        TRY(tiles_run(threads, n_rows, loss_tile, &(loss_rows){a, first, row_loss}));
        for (size_t r = 0; r < n_rows; r++)
            total += row_loss[r];
    }
    *a->loss = (float)total;
    return FSDP_OK;
}

fsdp_status cpu_cross_entropy(stream *s, const cross_entropy_args *a)
{
    return kernel_launch(s, cross_entropy_kernel, a, sizeof *a, cross_entropy_work(a));
}
