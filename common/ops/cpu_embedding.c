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
    TRY(check_numbers("embedding: token", "at position", a->tokens, n_rows,
                      cut_all(a->cut, a->vocab), false));
    n_threads = threads_for(n_threads, n_rows * a->width, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(n_rows, TILE_TOKENS), embedding_tile, a);
}

KERNEL(embedding)

/* ---- backward -------------------------------------------------------------------------------- */

/* With leaves, `order` has a row's token above its number, in ascending order: by Shell's sort, in
 * place, since the C library's takes memory. */
static void sort_by_token(const embedding_backward_args *a)
{
    const size_t n = a->batch * a->seq_len;
    for (size_t r = 0; r < n; r++)
        a->order[r] = (uint64_t)a->tokens[r] << 32 | r;
    for (size_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (size_t i = gap; i < n; i++) {
            const uint64_t x = a->order[i];
            size_t j = i;
            for (; j >= gap && a->order[j - gap] > x; j -= gap)
                a->order[j] = a->order[j - gap];
            a->order[j] = x;
        }
}

static size_t row_of(uint64_t place)
{
    return place & UINT32_MAX;
}

static int32_t token_of(uint64_t place)
{
    return (int32_t)(place >> 32);
}

/* Rows whose gradients are added: for a token rows[0 ... n) of `order`; for a position, with rows
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
static fsdp_status sum_leaves(const embedding_backward_args *a, size_t begin, size_t width)
{
    const size_t n_rows = a->batch * a->seq_len;
    leaf_part to = {.rows = 1, .cols = width, .ld = width};
    same_place p = {.a = a, .begin = begin};
    for (size_t i = 0; i < n_rows; i += p.n) {
        const int32_t token = token_of(a->order[i]);
        p.rows = a->order + i;
        for (p.n = 1; i + p.n < n_rows && token_of(p.rows[p.n]) == token;)
            p.n++;
        const size_t place = cut_place(a->cut, token);
        to.out = a->d_wte + place * a->width + begin;
        if (place < a->vocab)
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
    const embedding_backward_args *a = args;
    const size_t begin = tile * BAND_COLS, width = min_size(BAND_COLS, a->width - begin);
    const size_t n_rows = a->batch * a->seq_len;
    if (a->leaves > 1)
        return sum_leaves(a, begin, width);
    for (size_t r = 0; r < n_rows; r++)
        BY_TYPE(embedding_backward_row, a->type, a, r, begin, width);
    return FSDP_OK;
}

static fsdp_status embedding_backward_kernel(void *args, int n_threads)
{
    const embedding_backward_args *a = args;
    const size_t n_rows = a->batch * a->seq_len;
    TRY(check_numbers("embedding: token", "at position", a->tokens, n_rows,
                      cut_all(a->cut, a->vocab), false));
    n_threads = threads_for(n_threads, n_rows * a->width, MIN_PARALLEL_ELEMS);
    if (a->leaves > 1)
        sort_by_token(a);
    return tiles_run(n_threads, tiles_of(a->width, BAND_COLS), embedding_backward_tile, a);
}

KERNEL(embedding_backward)
