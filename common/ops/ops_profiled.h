/* ops_profiled.h -- a table of operations that counts and times every call.
 *
 *   ops_profile_roof (what this machine can do) -> ops_profiled (the table) -> use it like any
 * other
 *   -> ops_profiled_end, when no stream works with it any more
 *
 * The results are those of the table below it, bit for bit: a call launches a task that reads the
 * clock, the operation itself, and a task that adds the time and the cost by formula to the
 * profile. CPU streams only. */
#pragma once
#include "common/observe/profile.h"
#include "common/ops/ops.h"

/* ops_profiled -- `base`, counted in p; both are borrowed until ops_profiled_end. One at a time in
 * a process: a table has no place to keep them, so they are in a static variable. errors
 * FSDP_ESTATE: there is one already */
fsdp_status ops_profiled(const ops *base, profile *p, const ops **out);
void ops_profiled_end(void);

/* ops_launch_adamw -- stream_launch of a kernel that does what ops->adamw does, for code that
 * brings its own (lab 4). Counted as adamw when there is a profile. */
fsdp_status ops_launch_adamw(stream *s, stream_fn kernel, const adamw_args *a);

/* ops_profile_roof -- the best of the calls that fit in about 0.1 s each, on all threads of s:
 *   flops_per_s        matmul, 768 x 768 x 768
 *   bf16_flops_per_s   the same in bf16, of operands stored in bf16; 0 unless with_bf16
 *   bytes_per_s        add of arrays of 32 MiB, 12 bytes an element (make bench: triad, 96 MiB)
 * Needs 96 MiB for that time. All ranks of a host at once measure what each of them can have.
 *   errors  FSDP_ENOMEM */
fsdp_status ops_profile_roof(const ops *o, stream *s, bool with_bf16, profile_roof *out);
