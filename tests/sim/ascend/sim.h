/* sim.h -- what the parts of the stand-in for Ascend share: the runtime (acl*.c) with the operators
 * (aclnn*) and the collectives (hccl*).
 *
 * It reads these variables of the environment, and nobody else does:
 *   FSDP_SIM_NPUS=n          NPUs of the host (16)
 *   FSDP_SIM_MEMORY_MIB=n    memory of each (65536)
 *   FSDP_SIM_SOC=name        what aclrtGetSocName says (Ascend910B2)
 *   FSDP_SIM_FAULT=name:n    the n-th launch of that name ends in an error of the device
 *   FSDP_SIM_STREAMS=n       streams that a process may have (1984)
 *   FSDP_SIM_EVENTS=n        events of aclrtCreateEvent and aclrtCreateEventWithFlag (65536)
 *   FSDP_SIM_SECOND_MS=n     how long a second of HCCL's time-outs lasts (1000)
 *   FSDP_SIM_HANGS=1         go on, and hang, where HCCL would: else the process ends
 *   FSDP_SIM_PATIENCE_S=n    how long a stream waits for a thread to take its callback, or for an
 *                            event that nobody has recorded (10) */
#pragma once
#include <stdbool.h>
#include "acl/acl.h"
#include "common/device/device.h"

EXTERN_C_BEGIN

/* sim_acl_stream -- the stream of the CPU that stands for one of ACL's, for one more call of this
 * thread: *out. A stream that is NULL or destroyed ends the process. call: of the API.
 *   errors  ACL_ERROR_UNINITIALIZE; ACL_ERROR_RT_CONTEXT_NULL the thread has none;
 *           ACL_ERROR_RT_STREAM_CONTEXT the stream is another context's; the error that has stopped
 *           the context */
aclError sim_acl_stream(aclrtStream handle, const char *call, stream **out);
/* sim_acl_launch -- run fn(a copy of args, n_threads) in order of the stream, unless an error has
 * stopped its context by then; name [a literal] is noted for messages and FSDP_SIM_FAULT. If fn
 * returns an error, that is an exception on the NPU, which a later call reports with fn's words.
 *   errors  sim_acl_stream's */
aclError sim_acl_launch(aclrtStream handle, const char *name, stream_fn fn, const void *args,
                        size_t args_bytes);
/* sim_acl_launch_work -- the same of l's fn, args, args_bytes, waits_for and on_host. */
aclError sim_acl_launch_work(aclrtStream handle, const char *name, const launch_config *l);
/* sim_acl_is_device -- does ptr [bytes] lie in one block of the device, whole? */
bool sim_acl_is_device(const void *ptr, size_t bytes);
/* sim_acl_fail -- code is the thread's last error, and the text what aclGetRecentErrMsg says next;
 * returned. */
__attribute__((format(printf, 2, 3))) aclError sim_acl_fail(aclError code, const char *format, ...);
/* sim_break -- from now on every call of that name [a literal] fails, and does nothing: one of ACL
 * with ACL_ERROR_INTERNAL_ERROR, one of HCCL with HCCL_E_INTERNAL, a phase of an operator with
 * ACLNN_ERR_RUNTIME_ERROR (which uses the executor up). NULL: none. Only tests call it.
 * sim_is_broken: whether it does, and then aclGetRecentErrMsg has words for it. */
void sim_break(const char *call);
bool sim_is_broken(const char *call);
/* sim_acl_stream_made -- the priority and the flags that a stream was created with. */
void sim_acl_stream_made(aclrtStream handle, uint32_t *priority, uint32_t *flags);
/* sim_report_idle -- how many calls of aclrtProcessReport have found no callback so far. hurry:
 * from now on such a call does not wait for its time-out, as if that had passed. */
long sim_report_idle(bool hurry);
/* sim_acl_is_deterministic -- ACL_OPT_DETERMINISTIC of the current context, or of the process. */
bool sim_acl_is_deterministic(void);
/* sim_aclnn_workspace -- from now on operators that need no workspace ask for so many bytes. */
void sim_aclnn_workspace(size_t bytes);
/* sim_aclnn_live -- descriptions and executors of aclnn's that nobody has destroyed. */
long sim_aclnn_live(void);

EXTERN_C_END
