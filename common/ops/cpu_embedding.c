/* cpu_embedding.c -- token and position embeddings, for both tables.
 *
 * Backward adds rows in the order of (b,t), so the gradients of a token that occurs twice are added
 * in a fixed order. Threads split the columns, never the rows. */
#include <stdlib.h>
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

/* ---- backward -------------------------------------------------------------------------------- */

/* by_token: with leaves, the rows in order of their tokens, and of their numbers for each. */
typedef struct embedding_sums {
    const embedding_backward_args *a;
    const uint64_t *by_token;
} embedding_sums;

static size_t row_of(uint64_t place)
{
    return place & UINT32_MAX;
}

static int32_t token_of(uint64_t place)
{
    return (int32_t)(place >> 32);
}

static int compare_places(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Rows whose gradients are added: for a token rows[0 ... n) of by_token; for a position, with rows
 * NULL, its n rows of all sequences. */
typedef struct same_place {
    const embedding_backward_args *a;
    const uint64_t *rows;
    size_t n, position, begin;
} same_place;

ROW_FN void add_rows(const same_place *p, const leaf_part *to, dtype type)
{
    const embedding_backward_args *a = p->a;
    const size_t leaf_rows = a->batch * a->seq_len / a->leaves;
    for (size_t i = 0; i < p->n; i++) {
        const size_t r = p->rows ? row_of(p->rows[i]) : i * a->seq_len + p->position;
        const void *d_out = row_at(a->d_out, r * a->width + p->begin, type);
        for (size_t c = 0; c < to->cols && r / leaf_rows == to->leaf; c++)
            to->out[c] += row_load(d_out, c, type);
    }
}

static fsdp_status leaf_rows(const void *args, const leaf_part *to)
{
    const same_place *p = args;
    memset(to->out, 0, to->cols * sizeof *to->out);
    BY_TYPE(add_rows, p->a->type, p, to);
    leaf_add(to);
    return FSDP_OK;
}

/* The sums for columns `begin` on of every token that occurs, and of every position. */
static fsdp_status sum_leaves(const embedding_sums *j, size_t begin, size_t width)
{
    const embedding_backward_args *a = j->a;
    const size_t n_rows = a->batch * a->seq_len;
    leaf_part to = {.rows = 1, .cols = width, .ld = width};
    same_place p = {.a = a, .begin = begin};
    for (size_t i = 0; i < n_rows; i += p.n) {
        const int32_t token = token_of(j->by_token[i]);
        p.rows = j->by_token + i;
        for (p.n = 1; i + p.n < n_rows && token_of(p.rows[p.n]) == token;)
            p.n++;
        to.out = a->d_wte + (size_t)token * a->width + begin;
        TRY(leaves_sum(leaf_rows, &p, to, a->leaves));
    }
    p.rows = NULL;
    p.n = a->batch;
    for (p.position = 0; p.position < a->seq_len && a->d_wpe != NULL; p.position++) {
        to.out = a->d_wpe + p.position * a->width + begin;
        TRY(leaves_sum(leaf_rows, &p, to, a->leaves));
    }
    return FSDP_OK;
}

static fsdp_status embedding_backward_tile(const void *args, size_t tile)
{
    const embedding_sums *j = args;
    const embedding_backward_args *a = j->a;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->width - begin);
    const size_t n_rows = a->batch * a->seq_len;
    if (j->by_token != NULL)
        return sum_leaves(j, begin, width);
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
    uint64_t *by_token = NULL;
    if (a->leaves > 1 && n_rows > 0) {
        by_token = malloc(n_rows * sizeof *by_token);
        if (by_token == NULL)
            return fsdp_error(FSDP_ENOMEM, "free memory on this machine",
                              "embedding: no memory for the order of %zu tokens", n_rows);
        for (size_t r = 0; r < n_rows; r++)
            by_token[r] = (uint64_t)a->tokens[r] << 32 | r;
        qsort(by_token, n_rows, sizeof *by_token, compare_places);
    }
    const fsdp_status status = tiles_run(n_threads, tiles_of(a->width, BAND_COLS),
                                         embedding_backward_tile, &(embedding_sums){a, by_token});
    free(by_token);
    return status;
}

KERNEL(embedding_backward)
