/* aclnn_sim.h -- shared by the two halves of the operators' stand-in: aclnn*.cc checks aclnn's
 * calls; aclnn_math.c and aclnn_rows.c compute. */
#pragma once
#include <stdbool.h>
#include "acl/acl_base.h"
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { SIM_MOST_DIMS = 8, SIM_MOST_TENSORS = 14 };

/* A strided array; data points to its first element. type is ACL_DT_UNDEFINED if no tensor was
 * given. */
typedef struct sim_tensor {
    aclDataType type;
    int n_dims;
    int64_t dim[SIM_MOST_DIMS], stride[SIM_MOST_DIMS];
    char *data;
} sim_tensor;

/* What sim_each computes for each element: x and y of the operands, number and factor of the call's
 * number[0] and number[1]. GELU is the tanh form; of a gradient x is d_out and y the input. */
#define SIM_FUNCTIONS(X)                                                                           \
    X(SIM_FILL, number)                                                                            \
    X(SIM_ADD, x + number * y)                                                                     \
    X(SIM_MUL, x *y)                                                                               \
    X(SIM_DIV, x / y)                                                                              \
    X(SIM_ADDS, x + factor * number)                                                               \
    X(SIM_MULS, x *number)                                                                         \
    X(SIM_DIVS, x / number)                                                                        \
    X(SIM_SQRT, sqrtf(x))                                                                          \
    X(SIM_LOG, pm_logf(x))                                                                         \
    X(SIM_COS, (float)cos((double)x))                                                              \
    X(SIM_SIN, (float)sin((double)x))                                                              \
    X(SIM_GELU, x / (1.0f + pm_expf(-2.0f * gelu_inner(x))))                                       \
    X(SIM_GELU_GRAD, x *gelu_slope(y))                                                             \
    X(SIM_SILU, x / (1.0f + pm_expf(-x)))                                                          \
    X(SIM_SILU_GRAD, x *silu_slope(y))
#define SIM_FUNCTION_NAME(name, value) name,
typedef enum sim_function { SIM_FUNCTIONS(SIM_FUNCTION_NAME) } sim_function;

/* One call of an operator, as its kernel receives it. Each kernel documents the order of the
 * tensors. */
typedef struct sim_op sim_op;
typedef fsdp_status (*sim_kernel)(const sim_op *o);
struct sim_op {
    sim_kernel kernel;
    sim_function function;
    int n_tensors;
    sim_tensor t[SIM_MOST_TENSORS];
    double number[6];
    int64_t integer[4];
    bool fixed_order; /* ACL_OPT_DETERMINISTIC */
    float *workspace; /* the result while the kernel builds it; NULL if the operator has none */
    uint64_t workspace_bytes;
};

int64_t sim_elems(const sim_tensor *t);
size_t sim_type_bytes(aclDataType type);

/* ---- building blocks of kernels -------------------------------------------------------------- */
/* sim_repeated -- t in another shape: dimensions of 1 and missing dimensions are repeated. */
sim_tensor sim_repeated(const sim_tensor *t, const sim_tensor *shape);
/* sim_load -- t as dense fp32; the caller frees it. sim_store -- store dense fp32 in t, rounded
 * once to t's type. sim_index -- element i of a vector of integers. */
float *sim_load(const sim_tensor *t);
void sim_store(const sim_tensor *t, const float *x);
int64_t sim_index(const sim_tensor *t, int64_t i);
/* sim_result -- memory for a result, filled with NaN: the workspace, or a new block. sim_zeros --
 * the same, filled with zeros. sim_deliver -- store the result in `out`. */
float *sim_result(const sim_op *o, int64_t elems);
float *sim_zeros(const sim_op *o, int64_t elems);
void sim_deliver(const sim_op *o, const sim_tensor *out, float *result);
/* sim_first -- the term that a sum of n terms starts with if its order is not fixed: another term
 * each time, unless ACL_OPT_DETERMINISTIC is set. */
int64_t sim_first(const sim_op *o, int64_t n);

/* ---- kernels: t[0], ... are the tensors in the order of the operator's arguments ------------- */
fsdp_status sim_each(const sim_op *o);   /* in or a, b; out; number: see sim_function */
fsdp_status sim_cast(const sim_op *o);   /* in, out, of any types */
fsdp_status sim_triu(const sim_op *o);   /* io; integer: diagonal */
fsdp_status sim_rotary(const sim_op *o); /* x, cos, sin, out; integer: 1 interleaved */
fsdp_status sim_mm(const sim_op *o); /* a, b, out, old or none; number: alpha, beta; integer: low
                                        bits of the operands to drop */
fsdp_status sim_reduce_sum(const sim_op *o); /* in, out: sum over the first dimension */
/* in, weight, bias or none, out, mean or none, rstd; number: eps. Without a mean: RMS norm */
fsdp_status sim_norm(const sim_op *o);
/* d_out, in, mean or none, rstd, weight, d_in, d_weight, d_bias or none */
fsdp_status sim_norm_grad(const sim_op *o);
fsdp_status sim_log_softmax(const sim_op *o);      /* in, out */
fsdp_status sim_log_softmax_grad(const sim_op *o); /* d_out, out, d_in */
fsdp_status sim_nll(const sim_op *o);      /* log_p, target, weight, out, total; integer: ignored */
fsdp_status sim_nll_grad(const sim_op *o); /* d_out, log_p, target, weight, total, d_log_p */
fsdp_status sim_embedding(const sim_op *o);      /* table, numbers, out */
fsdp_status sim_embedding_grad(const sim_op *o); /* d_out, numbers, d_table */
/* q, k, v, mask, max, sum, out; number: scale; integer: heads */
fsdp_status sim_attention(const sim_op *o);
/* q, k, v, d_out, mask, max, sum, out, d_q, d_k, d_v */
fsdp_status sim_attention_grad(const sim_op *o);

EXTERN_C_END
