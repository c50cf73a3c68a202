/* aclnn_sim.h -- what the two halves of the operators' stand-in share: aclnn*.cc takes aclnn's
 * calls and checks them, aclnn_math*.c computes. */
#pragma once
#include <stdbool.h>
#include "acl/acl_base.h"
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { SIM_MOST_DIMS = 8, SIM_MOST_TENSORS = 14 };

/* A strided array; data is its first element. type ACL_DT_UNDEFINED: none was given. */
typedef struct sim_tensor {
    aclDataType type;
    int n_dims;
    int64_t dim[SIM_MOST_DIMS], stride[SIM_MOST_DIMS];
    char *data;
} sim_tensor;

/* What sim_each computes of each element. [number, number: what it needs of the call] */
typedef enum sim_function {
    SIM_FILL, /* the value */
    SIM_ADD,  /* alpha */
    SIM_MUL,
    SIM_DIV,
    SIM_ADDS, /* the term, alpha */
    SIM_MULS, /* the factor */
    SIM_DIVS, /* the divisor */
    SIM_SQRT,
    SIM_LOG,
    SIM_COS,
    SIM_SIN,
    SIM_GELU,      /* by tanh */
    SIM_GELU_GRAD, /* likewise; of d_out, in */
    SIM_SILU,
    SIM_SILU_GRAD /* of d_out, in */
} sim_function;

/* One operator's call: what its kernel is given. Which tensor stands where, each kernel says. */
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
    float *workspace; /* the kernel's result while it is made; NULL: the operator has none */
    uint64_t workspace_bytes;
};

int64_t sim_elems(const sim_tensor *t);
size_t sim_type_bytes(aclDataType type);

/* ---- what kernels are made of ---------------------------------------------------------------- */
/* sim_repeated -- t in another shape: repeated in dimensions of 1 and those that it lacks. */
sim_tensor sim_repeated(const sim_tensor *t, const sim_tensor *shape);
/* sim_load -- t as dense fp32, which the caller frees. sim_store -- the way back, with one rounding
 * to its type. sim_index -- element i of a vector of integers. */
float *sim_load(const sim_tensor *t);
void sim_store(const sim_tensor *t, const float *x);
int64_t sim_index(const sim_tensor *t, int64_t i);
/* sim_result -- where a result is made, filled with NaN: the workspace, or memory. sim_zeros: the
 * same, filled with zeros. sim_deliver -- it becomes `out`. */
float *sim_result(const sim_op *o, int64_t elems);
float *sim_zeros(const sim_op *o, int64_t elems);
void sim_deliver(const sim_op *o, const sim_tensor *out, float *result);
/* sim_first -- with which of n terms a sum begins whose order is not fixed: another one each time,
 * unless ACL_OPT_DETERMINISTIC is set. */
int64_t sim_first(const sim_op *o, int64_t n);

/* ---- kernels: t[0] ... are the tensors in the order of the operator's arguments -------------- */
fsdp_status sim_each(const sim_op *o);   /* in or a, b; out; number: see the function */
fsdp_status sim_cast(const sim_op *o);   /* in, out, of any types */
fsdp_status sim_triu(const sim_op *o);   /* io; integer: diagonal */
fsdp_status sim_rotary(const sim_op *o); /* x, cos, sin, out; integer: 1 interleaved */
fsdp_status sim_mm(const sim_op *o); /* a, b, out, old or none; number: alpha, beta; integer: bits
                                        of the operands that are cut off */
fsdp_status sim_reduce_sum(const sim_op *o); /* in, out: over the first dimension */
/* in, weight, bias or none, out, mean or none, rstd; number: eps. Without a mean: of RMS */
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
