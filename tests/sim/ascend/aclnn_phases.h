/* aclnn_phases.h -- how the stand-in's operators write their first phase. C++, as aclnn is.
 *
 *     OPERATOR(aclnnSqrt, const aclTensor *self, aclTensor *out)
 *     {
 *         BEGIN(aclnnSqrt);
 *         TAKE(self, FLOATS), TAKE(out, FLOATS);
 *         sim_expect(&c, sim_same_shape(&c.op.t[0], &c.op.t[1]), "self and out of one shape");
 *         return sim_phase1_end(&c, sim_sqrt, 0);
 *     } */
#pragma once
#include "aclnn/acl_meta.h"
#include "tests/sim/ascend/aclnn_sim.h"
#include "tests/sim/ascend/sim.h"
#include "tests/sim/core/streams.h"

/* [CANN aclnn return codes] */
enum {
    ACLNN_PARAM_NULLPTR = 161001,
    ACLNN_PARAM_INVALID = 161002,
    ACLNN_RUNTIME_ERROR = 361001,
    ACLNN_INNER_NULLPTR = 561103
};

enum sim_kind { SIM_TENSOR = 0xac11, SIM_SCALAR, SIM_INTS, SIM_BOOLS, SIM_EXECUTOR };

struct aclTensor {
    sim_handle handle;
    sim_tensor view;
    size_t bytes; /* from the view's first element to its last */
    const void *storage;
    size_t storage_bytes;
    bool outside, unaligned;
    aclFormat format;
};
struct aclScalar {
    sim_handle handle;
    double value;
};
struct aclIntArray {
    sim_handle handle;
    int n;
    int64_t value[SIM_MOST_DIMS];
};
struct aclBoolArray {
    sim_handle handle;
    int n;
    bool value[SIM_MOST_DIMS];
};
struct aclOpExecutor {
    sim_handle handle;
    const char *name;
    sim_op op;
    const aclTensor *given[SIM_MOST_TENSORS];
    uint64_t asked_bytes; /* of workspace, as the first phase has said */
    bool used;
};

/* sim_refuse -- the code, with words for aclGetRecentErrMsg. */
#define sim_refuse(code, ...) ((aclnnStatus)sim_acl_fail(code, __VA_ARGS__))

/* One call of a first phase. The first thing that is wrong with it is its code. */
typedef struct sim_call {
    const char *name;
    sim_op op;
    const aclTensor *given[SIM_MOST_TENSORS];
    aclnnStatus code;
    uint64_t *bytes_out;
    aclOpExecutor **executor_out;
} sim_call;

enum {
    TYPE_F32 = 1,
    TYPE_BF16 = 2,
    TYPE_I64 = 4,
    TYPE_I32 = 8,
    TYPE_U8 = 16,
    OPTIONAL = 32,
    FLOATS = TYPE_F32 | TYPE_BF16,
    INDICES = TYPE_I64 | TYPE_I32,
    ANY_TYPE = FLOATS | INDICES | TYPE_U8
};

sim_call sim_phase1(const char *name, uint64_t *bytes_out, aclOpExecutor **executor_out);
/* sim_take -- t is the call's next tensor; `types` are those that it may have. */
void sim_take(sim_call *c, const char *what, const aclTensor *t, unsigned types);
double sim_take_scalar(sim_call *c, const char *what, const aclScalar *x);
/* sim_expect -- refuse the call unless `holds`, which is about what was taken. */
void sim_expect(sim_call *c, bool holds, const char *what);
bool sim_same_shape(const sim_tensor *a, const sim_tensor *b);
/* sim_fits -- whether t, repeated, has this shape. */
bool sim_fits(const sim_tensor *t, const sim_tensor *shape);
aclnnStatus sim_phase1_end(sim_call *c, sim_kernel kernel, size_t workspace_floats);
aclnnStatus sim_phase2(const char *name, void *workspace, uint64_t bytes, aclOpExecutor *e,
                       aclrtStream queue);

/* OPERATOR -- both phases of an operator: the second, and the first, whose body follows. The body
 * begins with BEGIN, which makes the call `c`. TAKE names a tensor as its argument is named; an
 * operator that lacks a tensor of its kernel has TAKE_NONE in its place. */
#define OPERATOR(name, ...)                                                                        \
    aclnnStatus name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,             \
                     aclrtStream queue)                                                            \
    {                                                                                              \
        return sim_phase2(#name, workspace, workspaceSize, executor, queue);                       \
    }                                                                                              \
    aclnnStatus name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize,                       \
                                       aclOpExecutor **executor)
#define BEGIN(name)         sim_call c = sim_phase1(#name, workspaceSize, executor)
#define TAKE(tensor, types) sim_take(&c, #tensor, tensor, types)
#define TAKE_NONE()         sim_take(&c, "", NULL, OPTIONAL)
