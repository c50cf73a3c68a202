/* sim.h -- shared by the parts of the stand-in for Ascend: the runtime (acl*.c), the operators
 * (aclnn*) and the collectives (hccl.cc).
 *
 * Only the stand-in reads these environment variables:
 *   FSDP_SIM_NPUS=n          NPUs of the host (16)
 *   FSDP_SIM_MEMORY_MIB=n    memory of each NPU (65536)
 *   FSDP_SIM_SOC=name        the answer of aclrtGetSocName (Ascend910B2)
 *   FSDP_SIM_FAULT=name:n    the n-th launch of that name ends in an error of the device
 *   FSDP_SIM_STREAMS=n       streams that a process may have (1984)
 *   FSDP_SIM_EVENTS=n        events of aclrtCreateEvent and aclrtCreateEventWithFlag (65536)
 *   FSDP_SIM_SECOND_MS=n     length of one second of HCCL's time-outs (1000)
 *   FSDP_SIM_HANGS=1         hang where HCCL would, after a message; else the process ends
 *   FSDP_SIM_PATIENCE_S=n    how long a stream waits for a thread to take its callback, or for an
 *                            event that nobody has recorded (10) */
#pragma once
#include <stdbool.h>
#include "acl/acl.h"
#include "common/device/device.h"

EXTERN_C_BEGIN

/* sim_acl_stream -- *out is the CPU stream of an ACL stream, for one more call of this thread. If
 * the stream is NULL or destroyed, the process ends. call: the name of the API call.
 *   errors  ACL_ERROR_UNINITIALIZE; ACL_ERROR_RT_CONTEXT_NULL if the thread has no context;
 *           ACL_ERROR_RT_STREAM_CONTEXT if the stream belongs to another context; the error that
 *           has stopped the context */
aclError sim_acl_stream(aclrtStream handle, const char *call, stream **out);
/* sim_acl_launch -- run fn(a copy of args, n_threads) in the stream's order, unless an error has
 * stopped its context by then. name [a literal] is kept for messages and FSDP_SIM_FAULT. If fn
 * returns an error, that is an exception on the NPU; a later call reports it with fn's message.
 *   errors  as sim_acl_stream */
aclError sim_acl_launch(aclrtStream handle, const char *name, stream_fn fn, const void *args,
                        size_t args_bytes);
/* sim_acl_launch_work -- the same with fn, args, args_bytes, waits_for and on_host from l. */
aclError sim_acl_launch_work(aclrtStream handle, const char *name, const launch_config *l);
/* sim_acl_is_device -- whether ptr [bytes] lies entirely within one block of device memory. */
bool sim_acl_is_device(const void *ptr, size_t bytes);
/* sim_acl_fail -- returns code, sets it as the thread's last error, and keeps the text for the next
 * aclGetRecentErrMsg. */
__attribute__((format(printf, 2, 3))) aclError sim_acl_fail(aclError code, const char *format, ...);
/* sim_break -- from now on every call of that name [a literal] fails and does nothing: a call of
 * ACL with ACL_ERROR_INTERNAL_ERROR, one of HCCL with HCCL_E_INTERNAL, a phase of an operator with
 * ACLNN_ERR_RUNTIME_ERROR (the second phase still uses up the executor). NULL: no call fails. Only
 * tests call it. sim_is_broken -- whether the call is broken; if so, sets the text for
 * aclGetRecentErrMsg. */
void sim_break(const char *call);
bool sim_is_broken(const char *call);
/* sim_acl_stream_made -- the priority and the flags that a stream was created with. */
void sim_acl_stream_made(aclrtStream handle, uint32_t *priority, uint32_t *flags);
/* sim_stream_queries -- how many times aclrtStreamQuery has been called so far. */
long sim_stream_queries(void);
/* sim_report_idle -- how many calls of aclrtProcessReport have found no callback so far. hurry:
 * from now on such a call returns as if its time-out had passed. */
long sim_report_idle(bool hurry);
/* sim_acl_is_deterministic -- ACL_OPT_DETERMINISTIC of the current context; false without a
 * context. */
bool sim_acl_is_deterministic(void);
/* sim_aclnn_workspace -- from now on operators that need no workspace ask for this many bytes. */
void sim_aclnn_workspace(size_t bytes);
/* sim_aclnn_live -- number of aclnn descriptions and executors that nobody has destroyed. */
long sim_aclnn_live(void);

EXTERN_C_END
