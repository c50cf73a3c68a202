/* target_lib.h -- the device that a test runs on: the one that FSDP_DEVICE names, by default
 * "cpu". */
#pragma once
#include "common/comm/comm.h"
#include "common/ops/backend.h"

/* target_backend -- that device with its operations. Ends the program if no device has this name;
 * with exit status 77 (a skip) if this machine has no such device. */
const backend *target_backend(void);
/* target_ops -- its operations whose bits do not depend on the machine, or else its fast ones;
 * target_is_portable tells which. */
const ops *target_ops(void);
bool target_is_portable(void);
/* target_symbol -- a function of the device's plug-in, or of the libraries that the plug-in needs;
 * NULL: there is none of this name. */
void *target_symbol(const char *name);
/* target_index -- which of the host's devices this rank uses. */
int target_index(void);
/* target_adds_itself -- is the group's transport the device's own? In GRAD_ACC_FAST it adds what
 * ranks send in its own order. */
bool target_adds_itself(const comm *c);
/* target_comm -- a configuration for comm_open on the device: its sums, its own transport.
 * timeout_s 0: the default. */
comm_config target_comm(double timeout_s);
