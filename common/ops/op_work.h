/* op_work.h -- computes, from the arguments of an operation of ops.h, its name, cost and memory
 * accesses, and whether the arguments are valid: the same on every backend. A launch carries them
 * (stream_launch_work), so a watch of the device can count work and check the order of streams. */
#pragma once
#include "common/device/device.h"
#include "common/ops/ops.h"

enum { OP_MAX_ACCESSES = 10 };

EXTERN_C_BEGIN

typedef struct op_work {
    bool ends;          /* there is nothing to compute, or `status` is an error: the call returns
                           `status` and issues nothing */
    fsdp_status status; /* FSDP_EINVAL: the operation does not take these arguments */
    work_info info;
    mem_access accesses[OP_MAX_ACCESSES]; /* [n_accesses] */
    int n_accesses;
} op_work;

/* op_reads, op_writes -- add a range that the operation reads or writes. A no-op for 0 bytes and
 * for NULL, an optional array that was not passed. */
void op_reads(op_work *w, const void *ptr, size_t bytes);
void op_writes(op_work *w, const void *ptr, size_t bytes);

/* matmul_a_stride -- elements from one stored row of a to the next. matmul_a_span, matmul_out_span
 * -- elements from the first to the last of a, and of out, those between rows included. */
size_t matmul_a_stride(const matmul_args *a);
size_t matmul_a_span(const matmul_args *a);
size_t matmul_out_span(const matmul_args *a);

/* matmul_work ... -- the name, FLOPs, bytes and accesses of ops->matmul(s, a) ..., by the formulas
 * of op_list.h. If rows are not adjacent, like attention's
 * heads in a [B,T,3C] array, the access is the whole range from the first row to the last. */
#define OP(op, ...) op_work op##_work(const op##_args *a);
#include "common/ops/op_list.h"

/* OP_BOTH, OP_EACH -- initialise an operation's member of a backend's table `fast` or `portable`,
 * by the word in op_list.h. BOTH: with backend_op; EACH: with table_op. */
#define OP_BOTH(op, backend, table) .op = backend##_##op,
#define OP_EACH(op, backend, table) .op = table##_##op,

EXTERN_C_END
