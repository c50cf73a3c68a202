/* npu_ops.c -- the op table of an NPU. See npu_ops.h. */
#include "common/ops/op_work.h"
#include "lab6_npu/npu_ops.h"

#define HINT "train this model with --device cpu"

/* The word of a row as the status of a call. */
#define YES FSDP_OK
#define NO  fsdp_error(FSDP_EINVAL, HINT, "npu has no operation %s, which this model needs", name)
#define NO_ABOVE(x, most, words)                                                                   \
    ((x) <= (most)                                                                                 \
         ? FSDP_OK                                                                                 \
         : fsdp_error(FSDP_EINVAL, HINT, "npu has no operation %s with " words ", %zu and %zu",    \
                      name, x, most))

/* Each operation in the table is checked_op: npu_op, if its row does not refuse the call. */
#define CHECKED(op, word, then)                                                                    \
    static fsdp_status checked_##op(stream *s, const op##_args *a)                                 \
    {                                                                                              \
        const char *const name = #op;                                                              \
        (void)name, (void)s, (void)a;                                                              \
        TRY(word);                                                                                 \
        return then;                                                                               \
    }
#define DEFINE_YES(op, word)                 CHECKED(op, word, npu_##op(s, a))
#define DEFINE_NO(op, word)                  CHECKED(op, word, FSDP_OK)
#define DEFINE_NO_ABOVE(...)                 DEFINE_YES
#define OP(op, on_cpu, on_cuda, on_npu, ...) DEFINE_##on_npu(op, on_npu)
#include "common/ops/op_list.h"

static const sum_kernels SUMS = {.add = npu_add, .cast = npu_cast, .launch = npu_sum_launch};

static const ops FAST = {
    .name = "fast",
    .sums = &SUMS,
#define OP(op, ...) .op = checked_##op,
#include "common/ops/op_list.h"
};

const ops *ops_npu_fast(void)
{
    return &FAST;
}
