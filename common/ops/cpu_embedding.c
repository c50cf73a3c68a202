/* cpu_embedding.c -- token and position embeddings, for both tables.
 *
 * Backward adds rows in the order of (b,t), so the gradients of a token that occurs twice are added
 * in a fixed order. Threads split the columns, never the rows. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_elem.h"

enum {
    TILE_TOKENS = 16, /* rows of one forward tile */
    BAND_COLS = 64    /* columns of one backward tile */
};

fsdp_status check_numbers(const char *what, const char *where, const int32_t *numbers, size_t n,
                          size_t vocab, bool targets)
{
    for (size_t i = 0; i < n; i++) {
        if ((numbers[i] < 0 || (size_t)numbers[i] >= vocab) &&
            !(targets && numbers[i] == NO_TARGET))
            return fsdp_error(FSDP_EINVAL, "check that the data was made for this vocabulary",
                              "%s %d %s %zu, expected 0 ... %zu", what, (int)numbers[i], where, i,
                              vocab - 1);
    }
    return FSDP_OK;
}

static fsdp_status embedding_tile(const void *args, size_t tile)
{
    const embedding_args *a = args;
    const size_t n_rows = a->batch * a->seq_len;
    const size_t end = min_size(n_rows, (tile + 1) * TILE_TOKENS);
    for (size_t r = tile * TILE_TOKENS; r < end; r++)
        BY_TYPE(embedding_row, a->type, a, r, 0, a->width);
    return FSDP_OK;
}

static fsdp_status embedding_kernel(void *args, int n_threads)
{
    const embedding_args *a = args;
    const size_t n_rows = a->batch * a->seq_len;
    TRY(check_numbers("embedding: token", "at position", a->tokens, n_rows, a->vocab, false));
    n_threads = threads_for(n_threads, n_rows * a->width, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(n_rows, TILE_TOKENS), embedding_tile, a);
}

KERNEL(embedding)

static fsdp_status embedding_backward_tile(const void *args, size_t tile)
{
    const embedding_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->width - begin);
    const size_t n_rows = a->batch * a->seq_len;
    for (size_t r = 0; r < n_rows; r++)
        BY_TYPE(embedding_backward_row, a->type, a, r, begin, width);
    return FSDP_OK;
}

static fsdp_status embedding_backward_kernel(void *args, int n_threads)
{
    const embedding_backward_args *a = args;
    const size_t n_rows = a->batch * a->seq_len;
    TRY(check_numbers("embedding: token", "at position", a->tokens, n_rows, a->vocab, false));
    n_threads = threads_for(n_threads, n_rows * a->width, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(a->width, BAND_COLS), embedding_backward_tile, a);
}

KERNEL(embedding_backward)
