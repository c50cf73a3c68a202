/* sums.cu -- the kernels of sum_kernels.h: sums of vectors, with the bits of sum_run_cpu.c.
 *
 * A thread makes all additions of one element. So a warp reads neighbours of each input, once, and
 * writes each vector once. Each thread has its own array of slots (sum_kernels.h). Which slots an
 * addition uses depends only on the run, so the threads of a warp do not diverge. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

/* Arguments of a kernel are copied with the launch (at most 4 kB). Up to MOST_INPUTS pointers to
 * inputs are among the arguments; more pointers are uploaded to device memory. */
enum { MOST_INPUTS = 64 };

typedef struct sum_args {
    sum_run run;
    const void *const *more; /* the inputs' pointers in device memory; NULL: they are in `in` */
    const void *in[MOST_INPUTS];
} sum_args;

static_assert(sizeof(sum_args) <= 4096, "the arguments of a kernel");

static __device__ inline float node_of(float left, float right, dtype type)
{
    return type == DTYPE_BF16 ? bf16_round(left + right) : left + right;
}

static __device__ inline const void *sum_input(const sum_args *a, int n)
{
    return a->more != NULL ? a->more[n] : a->in[n];
}

/* Push element i of all inputs into slots [TREE_SUM_LEVELS]. Returns which slots are then
 * occupied: bit k is set if slot level + k is. */
static __device__ inline uint64_t push_inputs(const sum_args *a, size_t i, float *slot, dtype type)
{
    const sum_run *r = &a->run;
    uint64_t pushed = r->n_before;
    for (int k = r->level; k <= r->top; k++)
        if (r->before[k] != NULL)
            slot[k] = r->before[k][i];
    for (int n = 0; n < r->n_in; n++, pushed++) {
        float node = row_load(sum_input(a, n), i, type);
        int k = r->level;
        if (r->in_turn && pushed > 0)
            node = node_of(slot[k], node, type);
        for (uint64_t waits = pushed; waits % 2 == 1 && !r->in_turn; waits /= 2)
            node = node_of(slot[k++], node, type);
        slot[k] = node;
    }
    return r->in_turn ? 1 : pushed;
}

static __device__ inline void sum_element(const sum_args *a, size_t i, dtype type)
{
    const sum_run *r = &a->run;
    float slot[TREE_SUM_LEVELS], sum = 0.0f;
    const uint64_t waits = push_inputs(a, i, slot, type);
    bool begun = false;
    for (int k = r->level; k <= r->top; k++) {
        if ((waits >> (k - r->level) & 1) == 0)
            continue;
        if (r->root == NULL)
            r->after[k][i] = slot[k];
        sum = begun ? node_of(slot[k], sum, type) : slot[k]; /* the root: low slots first */
        begun = true;
    }
    if (r->root != NULL)
        ((float *)r->root)[i] = sum;
}

/* The pointers stay in constant memory: CUDA 11.8 would copy all for each thread, to index them. */
__global__ void sum_kernel(const __grid_constant__ sum_args a)
{
    const size_t i = global_thread();
    if (i < a.run.elems)
        BY_TYPE(sum_element, a.run.sum_dtype, &a, i);
}

/* Adds as unsigned, so that overflow wraps. */
__global__ void sum_i64_kernel(sum_args a)
{
    const size_t i = global_thread();
    uint64_t sum = 0;
    if (i >= a.run.elems)
        return;
    for (int n = 0; n < a.run.n_in; n++)
        sum += ((const uint64_t *)sum_input(&a, n))[i];
    ((uint64_t *)a.run.root)[i] = sum;
}

static cudaError_t sum_issue(stream *s, const void *args)
{
    const sum_args *a = (const sum_args *)args;
    return a->run.sum_dtype == DTYPE_I64
               ? LAUNCH(sum_i64_kernel, blocks_of(a->run.elems), BLOCK_THREADS, s, *a)
               : LAUNCH(sum_kernel, blocks_of(a->run.elems), BLOCK_THREADS, s, *a);
}

fsdp_status cuda_sum_launch(stream *s, const sum_launch *l)
{
    const size_t bytes = (size_t)l->run->n_in * sizeof *l->in;
    fsdp_status status = FSDP_OK;
    void *more = NULL;
    sum_args a;
    a.run = *l->run;
    if (l->run->n_in <= MOST_INPUTS) {
        memcpy(a.in, l->in, bytes);
    } else {
        TRY(device_alloc(s, MEM_COMM, bytes, "inputs of a sum", &more));
        status = device_upload(s, more, l->in, bytes);
    }
    a.more = (const void *const *)more;
    IF_OK(status, cuda_issue_as(s, sum_issue, &a, l->what));
    device_free(s, more);
    return status;
}
