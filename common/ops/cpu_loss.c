/* cpu_loss.c -- softmax cross-entropy and its gradient, for both tables.
 *
 * Rows are computed in parallel, ROW_BLOCK of them at a time; their losses are then added in row
 * order by the calling thread. A row is read three times: for the maximum, for the exponentials and
 * their sum, and for the division. A row of GPT-2 is 200 kB, so the first pass leaves it in L2. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_softmax.h"

enum { ROW_BLOCK = 512 };

typedef struct loss_rows {
    const cross_entropy_args *a;
    size_t first_row;
    double *row_loss; /* [ROW_BLOCK] */
} loss_rows;

static fsdp_status loss_tile(const void *args, size_t tile)
{
    const loss_rows *j = args;
    j->row_loss[tile] = BY_TYPE(cross_entropy_row, j->a->type, j->a, j->first_row + tile);
    return FSDP_OK;
}

/* *total += the losses of the rows [begin, end). */
static fsdp_status loss_sum(const cross_entropy_args *a, size_t begin, size_t end, int n_threads,
                            double *total)
{
    double row_loss[ROW_BLOCK];
    for (size_t first = begin; first < end; first += ROW_BLOCK) {
        const size_t n_rows = min_size(ROW_BLOCK, end - first);
        const int threads = threads_for(n_threads, n_rows * a->vocab, MIN_PARALLEL_EXPS);
        TRY(tiles_run(threads, n_rows, loss_tile, &(loss_rows){a, first, row_loss}));
        for (size_t r = 0; r < n_rows; r++)
            *total += row_loss[r];
    }
    return FSDP_OK;
}

static fsdp_status cross_entropy_kernel(void *args, int n_threads)
{
    const cross_entropy_args *a = args;
    const size_t leaves = a->leaves > 1 ? a->leaves : 1, rows = a->rows / leaves;
    TRY(check_numbers("cross_entropy: target", "in row", a->targets, a->rows,
                      cut_all(a->cut, a->vocab), true));
    for (size_t leaf = 0; leaf < leaves; leaf++) {
        double total = a->total ? *a->total : 0.0;
        TRY(loss_sum(a, leaf * rows, (leaf + 1) * rows, n_threads, &total));
        if (a->total)
            *a->total = total;
        if (a->loss)
            a->loss[leaf] = (float)total;
    }
    return FSDP_OK;
}

KERNEL(cross_entropy)

/* ---- blocks of a vocabulary ------------------------------------------------------------------ */

ROW_TILE(vocab_part, a->rows, 1, vocab_part_row)
TILED(vocab_part, a->rows, a->rows * a->vocab, MIN_PARALLEL_EXPS)
