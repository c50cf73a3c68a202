/* sum_run.c -- the host's half of a run: which slots change, and which vectors they get. See
 * sum_run.h. */
#include "common/sum/sum_run.h"
#include "common/base/recycle.h"
#include "common/device/device.h"

static int highest_bit(uint64_t x)
{
    return 63 - __builtin_clzll(x);
}

/* Whether slot k of [level, top] is occupied after the run. */
static bool occupied_after(const sum_run *r, int k)
{
    return r->in_turn || (r->n_after >> (k - r->level) & 1);
}

/* Set vec to vectors for the slots occupied after the run: first the vectors of slots
 * occupied before, from the highest slot on, then new ones. So the highest slot that changes adds
 * in place. *have = how many were there before. */
static fsdp_status vectors_get(grad_acc *g, sum_run *r, float **vec, int *have)
{
    int need = 0;
    *have = 0;
    for (int k = r->top; k >= r->level; k--) {
        r->before[k] = g->tree.slot[k];
        if (r->before[k] != NULL)
            vec[(*have)++] = r->before[k];
        need += occupied_after(r, k);
    }
    r->n_surplus = *have > need ? *have - need : 0;
    for (int i = *have; i < need; i++) {
        fsdp_status status = device_alloc_f32(g->stream, g->category, g->elems, g->label, &vec[i]);
        while (status != FSDP_OK && i > *have)
            device_free(g->stream, vec[--i]);
        TRY(status);
    }
    return FSDP_OK;
}

int sum_run_top(const grad_acc *g, int level, int n)
{
    if (g->mode == GRAD_ACC_FAST)
        return 0;
    const uint64_t before = tree_sum_waiting(&g->tree, level);
    return level + highest_bit(before ^ (before + (uint64_t)n));
}

fsdp_status sum_run_begin(grad_acc *g, stream *s, int level, int n, sum_run *r)
{
    float *vec[TREE_SUM_LEVELS];
    int have, next = 0;
    FSDP_ASSERT(g->tree.space.ctx == g);
    if (n < 1 || n > SUM_RUN_MAX_INPUTS)
        return fsdp_error(FSDP_EINVAL, "use fewer ranks in a group",
                          "sum_run: %d pushes, expected 1 ... %d", n, SUM_RUN_MAX_INPUTS);
    *r = (sum_run){.elems = g->elems,
                   .sum_dtype = g->sum_dtype,
                   .in_turn = g->mode == GRAD_ACC_FAST,
                   .n_in = n};
    r->level = r->in_turn ? 0 : level;
    r->n_before = tree_sum_waiting(&g->tree, r->level);
    r->n_after = r->n_before + (uint64_t)n;
    r->top = sum_run_top(g, r->level, n);
    FSDP_ASSERT(r->top < TREE_SUM_LEVELS);
    g->stream = s;
    TRY(vectors_get(g, r, vec, &have));
    for (int k = r->top; k >= r->level; k--) {
        if (occupied_after(r, k)) {
            r->fresh |= next >= have ? UINT64_C(1) << k : 0;
            r->after[k] = vec[next++];
        }
        g->tree.slot[k] = r->after[k];
    }
    g->n_pushed += n;
    return FSDP_OK;
}

void sum_run_end(const sum_run *r, stream *s)
{
    int left = r->n_surplus;
    for (int k = r->level; left > 0; k++)
        if (r->before[k] != NULL) {
            device_free(s, r->before[k]);
            left--;
        }
}

sum_run sum_run_part(const sum_run *r, size_t begin, size_t elems)
{
    sum_run part = *r;
    FSDP_ASSERT(r->root == NULL && begin + elems <= r->elems);
    part.elems = elems;
    for (int k = r->level; k <= r->top; k++) {
        part.before[k] = r->before[k] != NULL ? r->before[k] + begin : NULL;
        part.after[k] = r->after[k] != NULL ? r->after[k] + begin : NULL;
    }
    return part;
}

static void add_access(mem_access *out, int *n, const void *vec, size_t bytes)
{
    if (vec != NULL)
        out[(*n)++] = (mem_access){vec, bytes, true};
}

/* Vectors of `before` count as written, because sums may be made in place in them. */
int sum_run_accesses(const sum_run *r, mem_access *out)
{
    int n = 0;
    for (int k = r->level; k <= r->top; k++) {
        add_access(out, &n, r->before[k], r->elems * sizeof(float));
        add_access(out, &n, r->after[k], r->elems * sizeof(float));
    }
    add_access(out, &n, r->root, r->elems * dtype_bytes(r->sum_dtype));
    return n;
}

fsdp_status sum_run_launch(const sum_kernels *kernels, stream *s, const sum_run *r,
                           const void *const *in, const char *name, const char *label)
{
    size_t room = SUM_RUN_MAX_ACCESSES + (size_t)r->n_in;
    if (r->elems == 0)
        return FSDP_OK;
    mem_access *accesses = recycle_get(room * sizeof *accesses);
    if (accesses == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a sum of %d vectors", name, r->n_in);
    int n = sum_run_accesses(r, accesses);
    for (int i = 0; i < r->n_in; i++)
        accesses[n++] = (mem_access){in[i], r->elems * dtype_bytes(r->sum_dtype), false};
    const launch_config what = {
        .name = name, .label = label, .accesses = accesses, .n_accesses = n};
    fsdp_status status = kernels->launch(s, &(sum_launch){r, in, &what});
    recycle_put(accesses);
    return status;
}

sum_run sum_run_root(void *out, size_t elems, int n, dtype t)
{
    FSDP_ASSERT(n >= 1 && n <= SUM_RUN_MAX_INPUTS);
    FSDP_ASSERT(t == DTYPE_F32 || t == DTYPE_I64);
    sum_run r = {.elems = elems,
                 .sum_dtype = t,
                 .top = highest_bit((uint64_t)n),
                 .n_in = n,
                 .n_after = (uint64_t)n,
                 .root = out};
    if (t == DTYPE_F32 && (n & (n - 1)) == 0) /* the last push completes the root */
        r.after[r.top] = out;
    return r;
}
