/* npu_lib.h -- an NPU for the tests of lab 6.
 *
 *   npu_choose (in main) -> npu_run(g, body): open, body, agree, close      for every task
 *
 * The frame of the tests (grade_lib.h) runs on the CPU, because a learner's NPU may not open yet.
 * npu_run frees everything that a body makes with these functions, whatever the body returns: a
 * task that is not written must leak nothing. */
#pragma once
#include "common/ops/backend.h"
#include "tests/grade/grade_lib.h"

enum { NPU_MOST = 64 };
struct accel_api; /* common/accel/accel_api.h */

typedef struct npu {
    grade *g;
    const backend *backend;
    device *dev;                  /* NaN in fresh and freed memory; g->order watches it */
    bool is_sim;                  /* the stand-in, which answers questions that CANN cannot */
    const struct accel_api *api;  /* the learner's functions for dev */
    void *(*queue_of)(stream *s); /* ACL's stream */
    stream *compute;
    comm *comm; /* over the NPU's own transport; npu_comm opens it */
    void *blocks[NPU_MOST];
    stream *streams[NPU_MOST];
    event *events[NPU_MOST];
    int n_blocks, n_streams, n_events;
} npu;

/* npu_choose -- take the device that FSDP_DEVICE names if it is an NPU, else the stand-in. The
 * frame then runs on the CPU. Call it before grade_main. */
void npu_choose(void);

/* npu_function -- set *out, a pointer to a function, to a function that the plug-in or its
 * libraries export.
 *   errors  FSDP_ESKIP the plug-in is not built; FSDP_EINVAL no function has that name */
fsdp_status npu_function(const char *name, void *out);

/* npu_break -- on the stand-in, make every call named `call` [a literal of CANN's,
 * "aclrtRecordEvent"] fail until npu_break(NULL). Returns false on a real NPU, where calls cannot
 * be made to fail. */
bool npu_break(const char *call);
/* NPU_BROKEN -- check that the learner's function returns this code when that CANN call fails. */
enum { NPU_BROKEN_CODE = 500000 };
#define NPU_BROKEN(n, call, function, ...)                                                         \
    (npu_break(call) ? expect_int(WHAT("%s, when %s fails", #function, call),                      \
                                  (n)->api->function(__VA_ARGS__), NPU_BROKEN_CODE)                \
                     : FSDP_OK)
/* NPU_FAILS -- check that a function's status is `want`, with CANN's words, when that CANN call
 * fails; no call fails afterwards. npu_said -- check such a status. */
#define NPU_FAILS(call, want, status) (npu_break(call) ? npu_said(call, status, want) : FSDP_OK)
fsdp_status npu_said(const char *call, fsdp_status status, fsdp_status want);

/* npu_acl_by_others -- on every other rank, initialise ACL before the plug-in does, as a foreign
 * library might. Call it before grade_main. npu_acl_end finalises ACL; call it after grade_main. */
void npu_acl_by_others(void);
void npu_acl_end(void);

/* npu_run -- run the body on a fresh device, on every rank. All ranks return the same verdict.
 *   errors  FSDP_ESKIP no plug-in; the body's; FSDP_EINVAL the body leaked device memory */
typedef fsdp_status (*npu_body)(npu *n);
fsdp_status npu_run(grade *g, npu_body body);

/* npu_comm -- open n->comm over all ranks; collective. */
fsdp_status npu_comm(npu *n);

/* npu_block ... npu_event -- make one now; npu_run frees it after the body. A block is allocated on
 * the compute stream and holds a copy of values [bytes] (NULL: NaN). npu_host_block uses
 * device_alloc_host. */
fsdp_status npu_block(npu *n, const void *values, size_t bytes, void **out);
fsdp_status npu_host_block(npu *n, size_t bytes, void **out);
fsdp_status npu_stream(npu *n, const char *name, stream **out);
fsdp_status npu_event(npu *n, bool timed, event **out);

/* npu_order -- later work on `after` runs after everything issued on `before` so far. */
fsdp_status npu_order(npu *n, stream *before, stream *after);
