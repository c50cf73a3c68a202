/* aclnn.cc -- aclnn for the stand-in: descriptions, executors, and the two phases. aclnn_ops.cc has
 * the operators; aclnn_math.c and aclnn_rows.c have the arithmetic.
 *
 * The first phase copies the descriptions into an executor. The second puts the executor's kernel
 * on the stream. A destroyed object or a used executor stays recognisable for a while, so that
 * using it again gives a message:
 *
 *     a tensor that is destroyed before the second phase      ACLNN_ERR_INNER_NULLPTR
 *     an executor that was run before                         ACLNN_ERR_INNER_NULLPTR
 *     a workspace that is missing, too small or host memory   ACLNN_ERR_PARAM_...
 *     a workspace that is freed before the stream runs        the process ends */
#include "tests/sim/ascend/aclnn_phases.h"
#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- objects --------------------------------------------------------------------------------- */

static std::atomic<long> n_live;

template <typename T> static T *create(sim_kind kind)
{
    T *x = (T *)calloc(1, sizeof *x);
    if (x != NULL) {
        x->handle.what = kind;
        n_live++;
    }
    return x;
}

static aclnnStatus destroy(const void *object, sim_kind kind)
{
    const char *is = sim_handle_is_not(object, kind);
    if (is != NULL)
        return sim_refuse(object == NULL ? ACLNN_PARAM_NULLPTR : ACLNN_PARAM_INVALID,
                          "what is to be destroyed is %s", is);
    n_live--;
    sim_handle_destroy((void *)(uintptr_t)object);
    return 0;
}

long sim_aclnn_live(void)
{
    return n_live;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    int64_t storage = 1, last = 0, n = 1;
    bool too_large = false;
    if (viewDimsNum > SIM_MOST_DIMS || (viewDimsNum > 0 && (viewDims == NULL || stride == NULL)) ||
        (storageDimsNum > 0 && storageDims == NULL)) {
        sim_refuse(ACLNN_PARAM_INVALID, "aclCreateTensor: %d dimensions, expected at most %d",
                   (int)viewDimsNum, SIM_MOST_DIMS);
        return NULL;
    }
    aclTensor *t = create<aclTensor>(SIM_TENSOR);
    if (t == NULL)
        return NULL;
    for (uint64_t i = 0; i < storageDimsNum; i++)
        too_large |= __builtin_mul_overflow(storage, storageDims[i], &storage);
    t->view.n_dims = (int)viewDimsNum;
    t->view.type = dataType;
    for (uint64_t i = 0; i < viewDimsNum; i++) {
        t->view.dim[i] = viewDims[i];
        t->view.stride[i] = stride[i];
        n *= viewDims[i];
        last += (viewDims[i] - 1) * stride[i];
    }
    t->view.data = (char *)tensorData + offset * (int64_t)sim_type_bytes(dataType);
    t->bytes = n > 0 ? (size_t)(last + 1) * sim_type_bytes(dataType) : 0;
    too_large |= __builtin_mul_overflow(storage, sim_type_bytes(dataType), &t->storage_bytes);
    t->storage = tensorData;
    t->outside = n > 0 && (too_large || offset < 0 || last < 0 || offset + last >= storage);
    t->unaligned = n > 0 && (uintptr_t)tensorData % 32 != 0;
    t->format = format;
    return t;
}

/* Only ACL_FLOAT; the stand-in has no other scalars. */
aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    aclScalar *x = value != NULL && dataType == ACL_FLOAT ? create<aclScalar>(SIM_SCALAR) : NULL;
    if (x != NULL)
        x->value = (double)*(float *)value;
    return x;
}

template <typename A, typename T>
static A *create_array(sim_kind kind, const T *value, uint64_t size)
{
    A *x = value != NULL && size <= SIM_MOST_DIMS ? create<A>(kind) : NULL;
    if (x != NULL) {
        x->n = (int)size;
        memcpy(x->value, value, size * sizeof *value);
    }
    return x;
}

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    return create_array<aclIntArray>(SIM_INTS, value, size);
}

aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)
{
    return create_array<aclBoolArray>(SIM_BOOLS, value, size);
}

#define DESTROYS(call, type, kind)                                                                 \
    aclnnStatus call(const type *x)                                                                \
    {                                                                                              \
        return destroy(x, kind);                                                                   \
    }
DESTROYS(aclDestroyTensor, aclTensor, SIM_TENSOR)
DESTROYS(aclDestroyScalar, aclScalar, SIM_SCALAR)
DESTROYS(aclDestroyIntArray, aclIntArray, SIM_INTS)
DESTROYS(aclDestroyBoolArray, aclBoolArray, SIM_BOOLS)

/* ---- executors ------------------------------------------------------------------------------- */

/* The executor that a failed first phase returns. No caller may use it. */
static aclOpExecutor failed;

static aclnnStatus fail(sim_call *c, aclnnStatus code)
{
    if (c->bytes_out != NULL)
        *c->bytes_out = 4096;
    if (c->executor_out != NULL)
        *c->executor_out = &failed;
    return code;
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    if (executor == &failed)
        sim_die("aclDestroyAclOpExecutor of what a first phase that has failed left: it has made "
                "no executor");
    if (executor != NULL && executor->used)
        sim_die("aclDestroyAclOpExecutor of an executor that %s has used up: CANN has freed it",
                executor->name);
    return destroy(executor, SIM_EXECUTOR);
}

static std::atomic<size_t> small_bytes;

void sim_aclnn_workspace(size_t bytes)
{
    small_bytes = bytes;
}

aclnnStatus sim_phase1_end(sim_call *c, sim_kernel kernel, size_t workspace_floats)
{
    if (c->code == 0 && (c->bytes_out == NULL || c->executor_out == NULL))
        c->code = sim_refuse(ACLNN_PARAM_NULLPTR, "%s: no place for %s", c->name,
                             c->bytes_out == NULL ? "workspaceSize" : "the executor");
    if (c->code != 0)
        return fail(c, c->code);
    char call[96];
    snprintf(call, sizeof call, "%sGetWorkspaceSize", c->name);
    if (sim_is_broken(call))
        return fail(c, ACLNN_RUNTIME_ERROR);
    aclOpExecutor *e = create<aclOpExecutor>(SIM_EXECUTOR);
    if (e == NULL)
        return sim_refuse(ACLNN_INNER_NULLPTR, "%s: no memory", c->name);
    e->name = c->name;
    e->op = c->op;
    e->op.kernel = kernel;
    e->op.workspace_bytes = (workspace_floats * sizeof(float) + 31) / 32 * 32;
    memcpy(e->given, c->given, sizeof e->given);
    e->asked_bytes = workspace_floats > 0 ? e->op.workspace_bytes : (uint64_t)small_bytes;
    *c->bytes_out = e->asked_bytes;
    *c->executor_out = e;
    return 0;
}

static fsdp_status run_op(void *args, int n_threads)
{
    (void)n_threads;
    const sim_op *o = (const sim_op *)args;
    if (o->workspace != NULL && !sim_acl_is_device(o->workspace, (size_t)o->workspace_bytes))
        sim_die("an operator runs whose workspace was given back");
    return o->kernel(o);
}

/* Return an error if a tensor of the executor is not usable now, else 0. */
static aclnnStatus check_tensors(const aclOpExecutor *e)
{
    for (int i = 0; i < e->op.n_tensors; i++) {
        const aclTensor *t = e->given[i];
        if (t == NULL)
            continue;
        if (sim_handle_is_not(t, SIM_TENSOR) != NULL)
            return sim_refuse(ACLNN_INNER_NULLPTR, "%s: tensor %d was destroyed before it ran",
                              e->name, i);
        if (t->bytes > 0 && !sim_acl_is_device(t->view.data, 1))
            return sim_refuse(ACLNN_PARAM_INVALID, "%s: tensor %d is not memory of the device",
                              e->name, i);
        if (t->bytes > 0 && !sim_acl_is_device(t->storage, t->storage_bytes))
            return sim_refuse(ACLNN_PARAM_INVALID,
                              "%s: tensor %d: a storage of %zu bytes from %p on reaches out of "
                              "its block of memory",
                              e->name, i, t->storage_bytes, t->storage);
    }
    return 0;
}

aclnnStatus sim_phase2(const char *name, void *workspace, uint64_t bytes, aclOpExecutor *e,
                       aclrtStream queue)
{
    if (e == NULL || e == &failed)
        return sim_refuse(ACLNN_PARAM_NULLPTR, "%s: no executor", name);
    if (sim_handle_is_not(e, SIM_EXECUTOR) != NULL)
        return sim_refuse(ACLNN_INNER_NULLPTR, "%s: its executor was run before", name);
    if (strcmp(e->name, name) != 0)
        return sim_refuse(ACLNN_PARAM_INVALID, "%s: the executor was made by %s", name, e->name);
    if (e->asked_bytes > 0 && workspace == NULL)
        return sim_refuse(ACLNN_PARAM_NULLPTR, "%s: no workspace, expected %zu bytes", name,
                          (size_t)e->asked_bytes);
    if (bytes < e->asked_bytes || (bytes > 0 && !sim_acl_is_device(workspace, (size_t)bytes)))
        return sim_refuse(ACLNN_PARAM_INVALID,
                          "%s: workspace %p of %zu bytes, expected %zu of the "
                          "device",
                          name, workspace, (size_t)bytes, (size_t)e->asked_bytes);
    const aclnnStatus code = check_tensors(e);
    if (code != 0)
        return code;
    sim_op o = e->op;
    o.workspace = o.workspace_bytes > 0 ? (float *)workspace : NULL;
    o.fixed_order = sim_acl_is_deterministic();
    const aclError error = sim_is_broken(name) ? ACL_ERROR_INTERNAL_ERROR
                                               : sim_acl_launch(queue, name, run_op, &o, sizeof o);
    e->used = true;
    (void)destroy(e, SIM_EXECUTOR);
    return error == 0 ? 0 : ACLNN_RUNTIME_ERROR;
}

/* ---- the first phase ------------------------------------------------------------------------- */

sim_call sim_phase1(const char *name, uint64_t *bytes_out, aclOpExecutor **executor_out)
{
    sim_call c = {};
    c.name = name;
    c.bytes_out = bytes_out;
    c.executor_out = executor_out;
    return c;
}

static bool has_type(const aclTensor *t, unsigned types)
{
    static const struct {
        aclDataType type;
        unsigned bit;
    } BITS[] = {{ACL_FLOAT, TYPE_F32}, {ACL_BF16, TYPE_BF16}, {ACL_INT64, TYPE_I64},
                {ACL_INT32, TYPE_I32}, {ACL_UINT8, TYPE_U8},  {ACL_BOOL, TYPE_U8}};
    for (const auto &b : BITS)
        if (b.type == t->view.type)
            return types & b.bit;
    return false;
}

void sim_take(sim_call *c, const char *what, const aclTensor *t, unsigned types)
{
    const int i = c->op.n_tensors++;
    c->op.t[i].type = ACL_DT_UNDEFINED;
    c->given[i] = t;
    if (c->code != 0 || (t == NULL && (types & OPTIONAL)))
        return;
    if (t == NULL) {
        c->code = sim_refuse(ACLNN_PARAM_NULLPTR, "%s: %s is NULL", c->name, what);
        return;
    }
    c->op.t[i] = t->view;
    const char *wrong = sim_handle_is_not(t, SIM_TENSOR) ? "is no live tensor"
                        : !has_type(t, types)            ? "has a type that it does not take"
                        : t->format != ACL_FORMAT_ND     ? "is not of format ND"
                        : t->unaligned ? "does not begin at a multiple of 32 bytes"
                        : t->outside   ? "reaches out of its storage"
                                       : NULL;
    if (wrong != NULL)
        c->code = sim_refuse(ACLNN_PARAM_INVALID, "%s: %s %s (type %d)", c->name, what, wrong,
                             (int)t->view.type);
}

double sim_take_scalar(sim_call *c, const char *what, const aclScalar *x)
{
    if (c->code == 0 && sim_handle_is_not(x, SIM_SCALAR) != NULL)
        c->code = sim_refuse(ACLNN_PARAM_NULLPTR, "%s: %s is NULL or destroyed", c->name, what);
    return c->code == 0 ? x->value : 0.0;
}

void sim_expect(sim_call *c, bool holds, const char *what)
{
    if (c->code == 0 && !holds)
        c->code = sim_refuse(ACLNN_PARAM_INVALID, "%s: expected %s", c->name, what);
}

bool sim_same_shape(const sim_tensor *a, const sim_tensor *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->dim, b->dim, (size_t)a->n_dims * sizeof *a->dim) == 0;
}

bool sim_fits(const sim_tensor *t, const sim_tensor *shape)
{
    if (t->n_dims > shape->n_dims)
        return false;
    for (int i = 1; i <= t->n_dims; i++)
        if (t->dim[t->n_dims - i] != 1 && t->dim[t->n_dims - i] != shape->dim[shape->n_dims - i])
            return false;
    return true;
}
