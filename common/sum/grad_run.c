/* grad_run.c -- see grad_run.h.
 *
 * The planner is the binary counter of tree_sum.c on numbers of places instead of vectors. A place
 * is an input, a device vector or a temporary block on the executing thread's stack. */
#include "common/sum/grad_run.h"
#include <string.h>
#include "common/base/bytes_copy.h"
#include "common/base/recycle.h"
#include "common/ops/cpu_kernels.h"

enum {
    BLOCK_ELEMS = 2048, /* 8 kB a place: a few of them stay in the first cache */
    MAX_TEMPS = 16,     /* one a level of the tree: log2(GRAD_RUN_MAX_INPUTS) + 1 and some room */
    NONE = -1
};

/* ---- planning ------------------------------------------------------------------------------- */

typedef struct planner {
    grad_acc *acc; /* NULL: only count */
    stream *s;
    int n_in, n_vecs, n_temps, n_steps, n_merged;
    bool temp_used[MAX_TEMPS];
    float **vec;               /* [n_in + TREE_SUM_LEVELS] */
    grad_step *steps;          /* [2 * n_in + TREE_SUM_LEVELS] */
    float **merged;            /* as vec */
    int slot[TREE_SUM_LEVELS]; /* place of every node that waits, NONE */
} planner;

/* Places: 0 ... n_in-1 inputs; VEC(i); TEMP(i). */
static int vec_place(const planner *p, int i)
{
    return p->n_in + i;
}

static int temp_place(const planner *p, int i)
{
    return 2 * p->n_in + TREE_SUM_LEVELS + i; /* behind every vector there can be */
}

static bool is_temp(const planner *p, int place)
{
    return place >= temp_place(p, 0);
}

static bool is_vec(const planner *p, int place)
{
    return place >= p->n_in && !is_temp(p, place);
}

static int temp_get(planner *p)
{
    int i = 0;
    while (p->temp_used[i])
        i++;
    FSDP_ASSERT(i < MAX_TEMPS);
    p->temp_used[i] = true;
    p->n_temps = i >= p->n_temps ? i + 1 : p->n_temps;
    return temp_place(p, i);
}

static void step_add(planner *p, int dst, int left, int right)
{
    p->steps[p->n_steps++] = (grad_step){(int16_t)dst, (int16_t)left, (int16_t)right};
}

/* left + right as a new place: in a vector when one of them is in one, else in a temporary. */
static int merge(planner *p, int left, int right)
{
    int dst;
    if (is_vec(p, left) || is_vec(p, right))
        dst = is_vec(p, left) ? left : right;
    else if (is_temp(p, left) || is_temp(p, right))
        dst = is_temp(p, left) ? left : right;
    else
        dst = temp_get(p);
    step_add(p, dst, left, right);
    int other = dst == left ? right : left;
    if (is_temp(p, left) && dst != left)
        p->temp_used[left - temp_place(p, 0)] = false;
    if (is_temp(p, right) && dst != right)
        p->temp_used[right - temp_place(p, 0)] = false;
    if (is_vec(p, other) && is_vec(p, dst))
        p->merged[p->n_merged++] = p->vec[other - p->n_in];
    return dst;
}

/* The next node of a level: equal levels merge, as carries do. In fast mode one sum grows. */
static void push(planner *p, grad_acc_mode mode, int level, int place)
{
    if (mode == GRAD_ACC_FAST) {
        p->slot[0] = p->slot[0] == NONE ? place : merge(p, p->slot[0], place);
        return;
    }
    for (int k = 0; k < level; k++)
        if (p->slot[k] != NONE)
            FSDP_ASSERT_EQ(k, level); /* waiting level, pushed level */
    while (p->slot[level] != NONE) {
        place = merge(p, p->slot[level], place);
        p->slot[level++] = NONE;
        FSDP_ASSERT(level < TREE_SUM_LEVELS);
    }
    p->slot[level] = place;
}

/* A node that waits must outlive the call: it gets a vector. The step that made it writes there. */
static fsdp_status settle(planner *p, int level)
{
    int place = p->slot[level];
    if (place == NONE || is_vec(p, place))
        return FSDP_OK;
    float *vec = NULL;
    if (p->acc != NULL)
        TRY(device_alloc_f32(p->s, p->acc->category, p->acc->elems, p->acc->label, &vec));
    int to = vec_place(p, p->n_vecs);
    p->vec[p->n_vecs++] = vec;
    p->slot[level] = to;
    if (p->acc != NULL)
        p->acc->tree.slot[level] = vec; /* owned from here on, also when a later step fails */
    if (!is_temp(p, place)) {
        step_add(p, to, place, NONE);
        return FSDP_OK;
    }
    int i = p->n_steps - 1;
    while (p->steps[i].dst != place)
        i--;
    p->steps[i].dst = (int16_t)to;
    return FSDP_OK;
}

static fsdp_status planner_init(planner *p, grad_acc *g, stream *s, int n)
{
    size_t vecs = (size_t)n + TREE_SUM_LEVELS;
    *p = (planner){.acc = g, .s = s, .n_in = n};
    p->vec = recycle_get(vecs * sizeof *p->vec);
    p->merged = recycle_get(vecs * sizeof *p->merged);
    p->steps = recycle_get((vecs + (size_t)n) * sizeof *p->steps);
    for (int k = 0; k < TREE_SUM_LEVELS; k++)
        p->slot[k] = NONE;
    if (p->vec)
        memset(p->vec, 0, vecs * sizeof *p->vec);
    if (p->vec && p->merged && p->steps)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "", "grad_run: no host memory for %d pushes", n);
}

static void planner_free(planner *p)
{
    recycle_put(p->vec);
    recycle_put(p->merged);
    recycle_put(p->steps);
}

/* The vectors that g holds become places. */
static void take_slots(planner *p)
{
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        if (p->acc->tree.slot[k] == NULL)
            continue;
        p->vec[p->n_vecs] = p->acc->tree.slot[k];
        p->slot[k] = vec_place(p, p->n_vecs++);
    }
}

static fsdp_status settle_all(planner *p)
{
    for (int k = 0; k < TREE_SUM_LEVELS && p->acc != NULL; k++)
        p->acc->tree.slot[k] = is_vec(p, p->slot[k]) ? p->vec[p->slot[k] - p->n_in] : NULL;
    for (int k = 0; k < TREE_SUM_LEVELS; k++)
        TRY(settle(p, k));
    return FSDP_OK;
}

/* The plan as one piece of memory. Temporaries are numbered behind the vectors there are. */
static fsdp_status pack(const planner *p, grad_run **out)
{
    size_t vecs_bytes = (size_t)p->n_vecs * sizeof *p->vec;
    size_t merged_bytes = (size_t)p->n_merged * sizeof *p->merged;
    size_t steps_bytes = (size_t)p->n_steps * sizeof *p->steps;
    size_t bytes = sizeof(grad_run) + vecs_bytes + merged_bytes + steps_bytes;
    grad_run *r = recycle_get(bytes);
    if (!r)
        return fsdp_error(FSDP_ENOMEM, "", "grad_run: no host memory for %d steps", p->n_steps);
    *r = (grad_run){.bytes = bytes,
                    .elems = p->acc->elems,
                    .sum_dtype = p->acc->sum_dtype,
                    .n_in = p->n_in,
                    .n_vecs = p->n_vecs,
                    .n_temps = p->n_temps,
                    .n_steps = p->n_steps,
                    .n_merged = p->n_merged,
                    .merged_at = sizeof *r + vecs_bytes,
                    .steps_at = sizeof *r + vecs_bytes + merged_bytes};
    memcpy(r->vec, p->vec, vecs_bytes);
    memcpy((char *)r + r->merged_at, p->merged, merged_bytes);
    grad_step *steps = (grad_step *)((char *)r + r->steps_at);
    memcpy(steps, p->steps, steps_bytes);
    int shift = temp_place(p, 0) - p->n_in - p->n_vecs;
    for (int i = 0; i < p->n_steps; i++) {
        steps[i].dst = (int16_t)(steps[i].dst - (is_temp(p, steps[i].dst) ? shift : 0));
        steps[i].left = (int16_t)(steps[i].left - (is_temp(p, steps[i].left) ? shift : 0));
        steps[i].right = (int16_t)(steps[i].right - (is_temp(p, steps[i].right) ? shift : 0));
    }
    *out = r;
    return FSDP_OK;
}

fsdp_status grad_run_plan(grad_acc *g, stream *s, int level, int n, grad_run **out)
{
    FSDP_ASSERT(g->tree.space.ctx == g && level >= 0 && level < TREE_SUM_LEVELS);
    *out = NULL;
    if (n < 1 || n > GRAD_RUN_MAX_INPUTS)
        return fsdp_error(FSDP_EINVAL, "use fewer ranks in a group",
                          "grad_run: %d pushes, expected 1 ... %d", n, GRAD_RUN_MAX_INPUTS);
    planner p;
    fsdp_status status = planner_init(&p, g, s, n);
    g->stream = s;
    if (status == FSDP_OK) {
        take_slots(&p);
        for (int i = 0; i < n; i++)
            push(&p, g->mode, level, i);
        g->n_pushed += n;
        status = settle_all(&p);
    }
    if (status == FSDP_OK)
        status = pack(&p, out);
    for (int i = 0; i < p.n_merged && status != FSDP_OK; i++)
        device_free(s, p.merged[i]); /* they are in no slot any more */
    planner_free(&p);
    return status;
}

void grad_run_retire(const grad_run *r, stream *s)
{
    float *const *merged = (float *const *)((const char *)r + r->merged_at);
    for (int i = 0; i < r->n_merged; i++)
        device_free(s, merged[i]);
}

void grad_run_free(grad_run *r)
{
    recycle_put(r);
}

size_t grad_run_peak(grad_acc_mode mode, uint64_t n_before, int n)
{
    planner p;
    bool planned = planner_init(&p, NULL, NULL, n) == FSDP_OK;
    if (planned) {
        uint64_t waiting = mode == GRAD_ACC_FAST ? n_before > 0 : n_before;
        for (int k = 0; k < TREE_SUM_LEVELS; k++)
            if (waiting >> k & 1)
                p.slot[k] = vec_place(&p, p.n_vecs++);
        for (int i = 0; i < n; i++)
            push(&p, mode, 0, i);
        (void)settle_all(&p); /* allocates nothing without an accumulator */
    }
    size_t peak = planned ? (size_t)p.n_vecs : SIZE_MAX;
    planner_free(&p);
    return peak;
}

/* ---- executing ------------------------------------------------------------------------------ */

typedef struct run_job {
    const grad_run *run;
    const void *const *in;
    bool streams; /* the sums are too long to stay in a cache */
} run_job;

/* Where a thread keeps blocks: temporaries, and two inputs as fp32. */
typedef struct blocks {
    _Alignas(64) float temp[MAX_TEMPS][BLOCK_ELEMS];
    float expanded[2][BLOCK_ELEMS];
} blocks;

/* Where a step writes its block that begins at element `at`: never to an input. */
static float *block_out(const run_job *j, int place, size_t at, blocks *b)
{
    const grad_run *r = j->run;
    if (place < r->n_in + r->n_vecs)
        return r->vec[place - r->n_in] + at;
    return b->temp[place - r->n_in - r->n_vecs];
}

/* What a place holds of the block [at, at+n). operand: 0 or 1, of the step that reads it. */
static const float *block_in(const run_job *j, int place, size_t at, size_t n, blocks *b,
                             int operand)
{
    if (place >= j->run->n_in)
        return block_out(j, place, at, b);
    if (j->run->sum_dtype == DTYPE_F32)
        return (const float *)j->in[place] + at;
    const uint16_t *in = (const uint16_t *)j->in[place] + at;
    for (size_t i = 0; i < n; i++)
        b->expanded[operand][i] = f32_from_bf16(in[i]);
    return b->expanded[operand];
}

static void add_block(float *dst, const float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = left[i] + right[i];
}

static void add_block_rounded(float *dst, const float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_round(left[i] + right[i]);
}

/* A vector that the plan writes and does not read: the others are added in place. */
static bool is_new_vec(const grad_run *r, const grad_step *step)
{
    bool is_vec = step->dst >= r->n_in && step->dst < r->n_in + r->n_vecs;
    return is_vec && step->dst != step->left && step->dst != step->right;
}

static void run_step(const run_job *j, const grad_step *step, size_t at, size_t n, blocks *b)
{
    float *dst = block_out(j, step->dst, at, b);
    const float *left = block_in(j, step->left, at, n, b, 0);
    if (step->right < 0) {
        memcpy(dst, left, n * sizeof *dst);
        return;
    }
    const float *right = block_in(j, step->right, at, n, b, 1);
    if (j->run->sum_dtype != DTYPE_F32)
        add_block_rounded(dst, left, right, n);
    else if (j->streams && is_new_vec(j->run, step))
        f32_add_stream(dst, left, right, n);
    else
        add_block(dst, left, right, n);
}

static fsdp_status run_tile(const void *args, size_t tile)
{
    const run_job *j = args;
    const grad_run *r = j->run;
    const grad_step *steps = (const grad_step *)((const char *)r + r->steps_at);
    blocks b;
    size_t end = min_size(r->elems, (tile + 1) * TILE_ELEMS);
    for (size_t at = tile * TILE_ELEMS; at < end; at += BLOCK_ELEMS) {
        size_t n = min_size(BLOCK_ELEMS, end - at);
        for (int i = 0; i < r->n_steps; i++)
            run_step(j, &steps[i], at, n, &b);
    }
    return FSDP_OK;
}

fsdp_status grad_run_execute(const grad_run *r, const void *const *in, int n_threads)
{
    run_job job = {r, in, r->elems * sizeof(float) >= BYTES_STREAM_MIN};
    n_threads = threads_for(n_threads, r->elems, MIN_PARALLEL_ELEMS);
    return tiles_run(n_threads, tiles_of(r->elems, TILE_ELEMS), run_tile, &job);
}
