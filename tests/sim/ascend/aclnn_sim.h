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

/* One operator's call: what its kernel is given. Which tensor stands where, each kernel says. */
typedef struct sim_op sim_op;
typedef fsdp_status (*sim_kernel)(const sim_op *o);
struct sim_op {
    sim_kernel kernel;
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

/* ---- kernels: t[0] ... are the tensors in the order of the operator's arguments -------------- */
fsdp_status sim_add(const sim_op *o);       /* a, b, out; number: alpha */
fsdp_status sim_mul(const sim_op *o);       /* a, b, out */
fsdp_status sim_div(const sim_op *o);       /* a, b, out */
fsdp_status sim_adds(const sim_op *o);      /* a, out; number: term, alpha */
fsdp_status sim_muls(const sim_op *o);      /* a, out; number */
fsdp_status sim_divs(const sim_op *o);      /* a, out; number */
fsdp_status sim_sqrt(const sim_op *o);      /* in, out */
fsdp_status sim_log(const sim_op *o);       /* in, out */
fsdp_status sim_cos(const sim_op *o);       /* in, out */
fsdp_status sim_sin(const sim_op *o);       /* in, out */
fsdp_status sim_cast(const sim_op *o);      /* in, out, of any types */
fsdp_status sim_fill_all(const sim_op *o);  /* out; number */
fsdp_status sim_triu(const sim_op *o);      /* io; integer: diagonal */
fsdp_status sim_gelu(const sim_op *o);      /* in, out; integer: 1 tanh */
fsdp_status sim_gelu_grad(const sim_op *o); /* d_out, in, d_in; integer: 1 tanh */
fsdp_status sim_silu(const sim_op *o);      /* in, out */
fsdp_status sim_silu_grad(const sim_op *o); /* d_out, in, d_in */
fsdp_status sim_rotary(const sim_op *o);    /* x, cos, sin, out; integer: 1 interleaved */
fsdp_status sim_mm(const sim_op *o); /* a, b, out, old or none; number: alpha, beta; integer: bits
                                        of the operands that are cut off */
fsdp_status sim_reduce_sum(const sim_op *o);       /* in, out; integer: the dimension */
fsdp_status sim_layernorm(const sim_op *o);        /* in, weight, bias, out, mean, rstd; eps */
fsdp_status sim_layernorm_grad(const sim_op *o);   /* d_out, in, mean, rstd, weight, d_in ... */
fsdp_status sim_rmsnorm(const sim_op *o);          /* in, weight, out, rstd; eps */
fsdp_status sim_rmsnorm_grad(const sim_op *o);     /* d_out, in, rstd, weight, d_in, d_weight */
fsdp_status sim_log_softmax(const sim_op *o);      /* in, out */
fsdp_status sim_log_softmax_grad(const sim_op *o); /* d_out, out, d_in */
fsdp_status sim_nll(const sim_op *o); /* log_p, target, weight, out, total; reduction, ignored */
fsdp_status sim_nll_grad(const sim_op *o);       /* d_out, log_p, target, weight, total, d_log_p */
fsdp_status sim_embedding(const sim_op *o);      /* table, numbers, out */
fsdp_status sim_embedding_grad(const sim_op *o); /* d_out, numbers, d_table; integer: padding */
/* q, k, v, mask, max, sum, out; number: scale; integer: heads */
fsdp_status sim_attention(const sim_op *o);
/* q, k, v, d_out, mask, max, sum, out, d_q, d_k, d_v */
fsdp_status sim_attention_grad(const sim_op *o);

EXTERN_C_END
