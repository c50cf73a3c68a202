/* aclnn_phases.h -- helpers for the first phase of the stand-in's operators. C++, like aclnn.
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
    uint64_t asked_bytes; /* workspace that the first phase asked for */
    bool used;
};

/* sim_refuse -- returns the code; aclGetRecentErrMsg then has the text. */
#define sim_refuse(code, ...) ((aclnnStatus)sim_acl_fail(code, __VA_ARGS__))

/* One call of a first phase. `code` is the first error found. */
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
/* sim_take -- t becomes the call's next tensor; `types` is the set of types it may have. */
void sim_take(sim_call *c, const char *what, const aclTensor *t, unsigned types);
double sim_take_scalar(sim_call *c, const char *what, const aclScalar *x);
/* sim_expect -- refuse the call unless `holds`, a condition on the tensors taken so far. */
void sim_expect(sim_call *c, bool holds, const char *what);
bool sim_same_shape(const sim_tensor *a, const sim_tensor *b);
/* sim_fits -- whether t can be repeated to this shape. */
bool sim_fits(const sim_tensor *t, const sim_tensor *shape);
aclnnStatus sim_phase1_end(sim_call *c, sim_kernel kernel, size_t workspace_floats);
aclnnStatus sim_phase2(const char *name, void *workspace, uint64_t bytes, aclOpExecutor *e,
                       aclrtStream queue);

/* OPERATOR -- defines both phases of an operator: the second phase, and the head of the first,
 * whose body follows. The body starts with BEGIN, which makes the call `c`. TAKE takes the tensor
 * of a named argument. An operator without one of its kernel's tensors calls TAKE_NONE in that
 * position. */
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
