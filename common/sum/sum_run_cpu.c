/* sum_run_cpu.c -- the CPU's kernel of a run (sum_kernels.h): tree_sum on blocks of elements.
 *
 * For every block of BLOCK_ELEMS elements: load the slots' blocks before -> push every input's
 * block -> store the slots' blocks after. Copies are avoided. An input is read in place. A sum that
 * will be merged again is kept in a block on the stack, or in the vector of the waiting node that
 * it begins with. A sum that waits in a slot afterwards is written to that slot's vector at once.
 * That is safe: waiting nodes come first in the order of leaves, so they are merged before a sum of
 * later nodes is written to one of their vectors. */
#include "common/base/bytes_copy.h"
#include "common/base/recycle.h"
#include "common/device/cpu_tiles.h"
#include "common/device/device.h"
#include "common/sum/sum_kernels.h"
#include <string.h>

enum {
    BLOCK_ELEMS = 2048, /* 8 kB: several fit the first-level cache */
    N_BLOCKS = 21,      /* one for a waiting node on each level below the root of
                           SUM_RUN_MAX_INPUTS, and one for the next input */
};

typedef struct run_args {
    const sum_run *run;
    const void *const *in;
} run_args;

/* The state of one thread. */
typedef struct pass {
    const sum_run *run;
    size_t at, n;    /* the block of this round: elements at ... at+n-1 */
    uint64_t pushed; /* nodes of run->level pushed so far, including those before the run */
    bool streams;    /* write new vectors past the cache, which they do not fit */
    tree_sum tree;
    float *expanded; /* the block with the next input, expanded from bf16; NULL: none taken */
    bool used[N_BLOCKS];
    _Alignas(64) float block[N_BLOCKS][BLOCK_ELEMS];
} pass;

static float *block_take(pass *p)
{
    int i = 0;
    while (i < N_BLOCKS && p->used[i])
        i++;
    FSDP_ASSERT(i < N_BLOCKS);
    p->used[i] = true;
    return p->block[i];
}

static bool is_block(const pass *p, const float *vec)
{
    return (uintptr_t)vec - (uintptr_t)p->block < sizeof p->block;
}

/* Whether a sum that includes vec may overwrite vec. An input may not be overwritten. */
static bool is_ours(const pass *p, const float *vec)
{
    const sum_run *r = p->run;
    for (int k = r->level; k <= r->top; k++)
        if (r->before[k] != NULL && vec == r->before[k] + p->at)
            return true;
    return is_block(p, vec);
}

/* Give a block back. Ignores vectors that are not blocks: inputs and vectors of slots. */
static void blocks_put(void *ctx, float *vec)
{
    pass *p = ctx;
    if (is_block(p, vec))
        p->used[(size_t)(vec - p->block[0]) / BLOCK_ELEMS] = false;
}

/* A waiting node is read in place. */
static fsdp_status blocks_keep(void *ctx, const float *vec, float **slot)
{
    pass *p = ctx;
    if (vec == p->expanded)
        p->expanded = NULL;
    *slot = (float *)vec; /* written only if it is a block */
    return FSDP_OK;
}

/* Where the sum of `level` that is being made waits after the run; NULL if it will be merged again.
 * The last node of a level waits if the number of nodes is odd. */
static float *final_place(const pass *p, int level)
{
    const sum_run *r = p->run;
    uint64_t made = p->pushed >> (level - r->level), all = r->n_after >> (level - r->level);
    if (made != all || (!r->in_turn && all % 2 == 0) || r->after[level] == NULL)
        return NULL;
    return r->after[level] + p->at;
}

static void add_plain(float *sum, const float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = left[i] + right[i];
}

static void add_rounded(float *sum, const float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] = bf16_round(left[i] + right[i]);
}

static fsdp_status blocks_add(void *ctx, int level, float **left, const float *right)
{
    pass *p = ctx;
    float *sum = final_place(p, level);
    bool waits = sum != NULL;
    if (!waits)
        sum = is_ours(p, *left) ? *left : block_take(p);
    if (p->run->sum_dtype == DTYPE_BF16)
        add_rounded(sum, *left, right, p->n);
    else if (waits && p->streams && (p->run->fresh >> level & 1))
        f32_add_stream(sum, *left, right, p->n);
    else
        add_plain(sum, *left, right, p->n);
    if (sum != *left)
        blocks_put(p, *left);
    *left = sum;
    return FSDP_OK;
}

/* The current block of an input, as fp32. */
static const float *input_block(pass *p, const void *in)
{
    if (p->run->sum_dtype == DTYPE_F32)
        return (const float *)in + p->at;
    const uint16_t *bf16 = (const uint16_t *)in + p->at;
    if (p->expanded == NULL)
        p->expanded = block_take(p);
    for (size_t i = 0; i < p->n; i++)
        p->expanded[i] = f32_from_bf16(bf16[i]);
    return p->expanded;
}

static void block_store(pass *p, float *vec, const float *block)
{
    if (vec + p->at != block)
        memcpy(vec + p->at, block, p->n * sizeof *block);
}

/* Do all additions for elements at ... at+n-1. */
static fsdp_status run_block(pass *p, const void *const *in)
{
    const sum_run *r = p->run;
    float **slot = p->tree.slot, *root;
    for (int k = r->level; k <= r->top; k++)
        slot[k] = r->before[k] != NULL ? r->before[k] + p->at : NULL;
    p->pushed = r->n_before;
    for (int i = 0; i < r->n_in; i++) {
        const float *node = input_block(p, in[i]);
        p->pushed++;
        TRY(tree_sum_push(&p->tree, r->level, node));
    }
    if (r->root != NULL) {
        p->pushed = 0; /* for final_place: no sum of finish waits in a slot */
        TRY(tree_sum_finish(&p->tree, &root));
        block_store(p, r->root, root);
        blocks_put(p, root);
        return FSDP_OK;
    }
    for (int k = r->level; k <= r->top; k++)
        if (slot[k] != NULL) {
            block_store(p, r->after[k], slot[k]); /* nodes that were pushed but not merged */
            blocks_put(p, slot[k]);
            slot[k] = NULL;
        }
    return FSDP_OK;
}

static fsdp_status i64_tile(const run_args *a, size_t begin, size_t end)
{
    uint64_t *out = a->run->root;
    for (size_t i = begin; i < end; i++) {
        uint64_t sum = 0; /* unsigned: wraps as two's complement does */
        for (int k = 0; k < a->run->n_in; k++)
            sum += ((const uint64_t *)a->in[k])[i];
        out[i] = sum;
    }
    return FSDP_OK;
}

static fsdp_status run_tile(const void *args, size_t tile)
{
    const run_args *a = args;
    size_t end = min_size(a->run->elems, (tile + 1) * TILE_ELEMS);
    if (a->run->sum_dtype == DTYPE_I64)
        return i64_tile(a, tile * TILE_ELEMS, end);
    pass p;
    p.run = a->run;
    p.streams = a->run->elems * sizeof(float) >= BYTES_STREAM_MIN;
    p.expanded = NULL;
    memset(p.used, 0, sizeof p.used);
    tree_sum_init(
        &p.tree,
        (tree_sum_space){.ctx = &p, .keep = blocks_keep, .add = blocks_add, .put = blocks_put});
    p.tree.in_turn = a->run->in_turn;
    for (p.at = tile * TILE_ELEMS; p.at < end; p.at += BLOCK_ELEMS) {
        p.n = min_size(BLOCK_ELEMS, end - p.at);
        TRY(run_block(&p, a->in));
    }
    if (p.streams)
        bytes_stream_fence();
    return FSDP_OK;
}

fsdp_status sum_run_cpu(const sum_run *r, const void *const *in, int n_threads)
{
    run_args args = {r, in};
    n_threads = threads_for(n_threads, r->elems, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(r->elems, TILE_ELEMS), run_tile, &args);
}

/* The arguments of a launch, which copies them. */
typedef struct launch_args {
    sum_run run;
    const void *in[]; /* [n_in] */
} launch_args;

static fsdp_status run_launched(void *args, int n_threads)
{
    const launch_args *a = args;
    return sum_run_cpu(&a->run, a->in, n_threads);
}

fsdp_status sum_launch_cpu(stream *s, const sum_launch *l)
{
    size_t in_bytes = (size_t)l->run->n_in * sizeof *l->in, bytes = sizeof(launch_args) + in_bytes;
    launch_args *a = recycle_get(bytes);
    if (a == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a sum of %d vectors", l->what->name,
                          l->run->n_in);
    a->run = *l->run;
    memcpy(a->in, l->in, in_bytes);
    launch_config what = *l->what;
    what.fn = run_launched;
    what.args = a;
    what.args_bytes = bytes;
    fsdp_status status = stream_launch_work(s, &what);
    recycle_put(a);
    return status;
}
