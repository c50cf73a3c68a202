/* npu_ops_sums.c -- sums of vectors (sum_kernels.h), one Add for each addition, in the order of
 * tree_sum.h: fp32 additions, so the bits equal the CPU's. See npu_ops.h.
 *
 * A slot holds a pointer to its node: an input, one of the run's own vectors, or scratch memory. A
 * sum overwrites its left node if that is not an input. The vectors that were in slots before
 * the run come first in the order of the leaves. So their sum ends in slot `top`, already in the
 * vector of slot `top` after the run. At the end the other nodes are copied to their vectors. */
#include "lab6_npu/npu_ops.h"
#include "common/sum/sum_run.h"

typedef struct pass {
    stream *s;
    const sum_run *run;
    tree_sum tree;
    float *scratch[TREE_SUM_LEVELS + 2]; /* vectors; NULL: not allocated yet */
    bool used[TREE_SUM_LEVELS + 2];
    uint16_t *half; /* scratch for rounding; NULL: the sum is not bf16 */
} pass;

static npu_view vector(const pass *p, const float *ptr)
{
    return view_f32(ptr, p->run->elems);
}

static fsdp_status scratch_take(pass *p, float **out)
{
    int i = 0;
    while (p->used[i])
        i++;
    FSDP_ASSERT(i < TREE_SUM_LEVELS + 2);
    if (p->scratch[i] == NULL)
        TRY(device_alloc_f32(p->s, MEM_OTHER, p->run->elems, "node of a sum", &p->scratch[i]));
    p->used[i] = true;
    *out = p->scratch[i];
    return FSDP_OK;
}

static void scratch_put(void *ctx, float *vec)
{
    pass *p = ctx;
    for (int i = 0; i < TREE_SUM_LEVELS + 2; i++)
        if (p->scratch[i] == vec)
            p->used[i] = false;
}

/* Whether vec may be overwritten: scratch memory, or a node that was in a slot before the run. */
static bool is_ours(const pass *p, const float *vec)
{
    const sum_run *r = p->run;
    for (int i = 0; i < TREE_SUM_LEVELS + 2; i++)
        if (p->scratch[i] == vec)
            return true;
    for (int k = r->level; k <= r->top; k++)
        if (r->before[k] == vec)
            return true;
    return false;
}

static fsdp_status node_keep(void *ctx, const float *vec, float **slot)
{
    (void)ctx;
    *slot = (float *)(uintptr_t)vec;
    return FSDP_OK;
}

/* *left = *left + right, in the memory of *left if it may be overwritten, or in scratch memory. */
static fsdp_status node_add(void *ctx, int level, float **left, const float *right)
{
    pass *p = ctx;
    float *sum = *left;
    (void)level;
    if (!is_ours(p, sum))
        TRY(scratch_take(p, &sum));
    TRY(aclnn_add(p->s, vector(p, sum), vector(p, *left), vector(p, right)));
    scratch_put(p, (float *)(uintptr_t)right);
    *left = sum;
    if (p->half == NULL)
        return FSDP_OK;
    TRY(aclnn_cast(p->s, view_1d(p->half, ACL_BF16, p->run->elems), vector(p, sum)));
    return aclnn_cast(p->s, vector(p, sum), view_1d(p->half, ACL_BF16, p->run->elems));
}

/* *out = an input as fp32: the input itself, or a copy in scratch memory. */
static fsdp_status input_node(pass *p, const void *in, const float **out)
{
    float *wide;
    *out = in;
    if (p->run->sum_dtype == DTYPE_F32)
        return FSDP_OK;
    TRY(scratch_take(p, &wide));
    *out = wide;
    return aclnn_cast(p->s, vector(p, wide), view_1d(in, ACL_BF16, p->run->elems));
}

static fsdp_status deliver(pass *p, float *to, const float *node)
{
    return to == node ? FSDP_OK : aclnn_copy(p->s, vector(p, to), vector(p, node));
}

/* Push the inputs. Then copy the nodes in slots to their vectors, or the sum of all to the root. */
static fsdp_status run_steps(pass *p, const void *const *in)
{
    const sum_run *r = p->run;
    float **slot = p->tree.slot, *sum;
    for (int k = r->level; k <= r->top; k++)
        slot[k] = r->before[k];
    for (int n = 0; n < r->n_in; n++) {
        const float *node;
        TRY(input_node(p, in[n], &node));
        TRY(tree_sum_push(&p->tree, r->level, node));
    }
    if (r->root != NULL) {
        TRY(tree_sum_finish(&p->tree, &sum));
        return deliver(p, r->root, sum);
    }
    for (int k = r->level; k <= r->top; k++)
        if (slot[k] != NULL)
            TRY(deliver(p, r->after[k], slot[k]));
    return FSDP_OK;
}

static fsdp_status run_pass(pass *p, const void *const *in)
{
    const sum_run *r = p->run;
    void *half = NULL;
    if (r->sum_dtype == DTYPE_BF16)
        TRY(device_alloc(p->s, MEM_OTHER, r->elems * sizeof(uint16_t), "rounded node", &half));
    p->half = half;
    tree_sum_init(&p->tree, (tree_sum_space){
                                .ctx = p, .keep = node_keep, .add = node_add, .put = scratch_put});
    p->tree.in_turn = r->in_turn;
    fsdp_status status = run_steps(p, in);
    for (int i = TREE_SUM_LEVELS + 1; i >= 0; i--)
        device_free(p->s, p->scratch[i]);
    device_free(p->s, half);
    return status;
}

/* root = the sum of integers, made in scratch memory because root may be one of the inputs. */
static fsdp_status sum_integers(stream *s, const sum_launch *l)
{
    const sum_run *r = l->run;
    void *sum;
    TRY(device_alloc(s, MEM_OTHER, r->elems * sizeof(int64_t), "sum of integers", &sum));
    const npu_view to = view_1d(sum, ACL_INT64, r->elems);
    fsdp_status status = aclnn_copy(s, to, view_1d(l->in[0], ACL_INT64, r->elems));
    for (int i = 1; i < r->n_in && status == FSDP_OK; i++)
        status = aclnn_add(s, to, to, view_1d(l->in[i], ACL_INT64, r->elems));
    IF_OK(status, aclnn_copy(s, view_1d(r->root, ACL_INT64, r->elems), to));
    device_free(s, sum);
    return status;
}

static fsdp_status sum_issue(stream *s, const void *args)
{
    const sum_launch *l = args;
    pass p = {.s = s, .run = l->run};
    return l->run->sum_dtype == DTYPE_I64 ? sum_integers(s, l) : run_pass(&p, l->in);
}

fsdp_status npu_sum_launch(stream *s, const sum_launch *l)
{
    return accel_issue_as(s, sum_issue, l, l->what);
}
