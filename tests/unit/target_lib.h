/* target_lib.h -- the device that a test runs on: what FSDP_DEVICE names, "cpu" without it. */
#pragma once
#include "common/comm/comm.h"
#include "common/ops/backend.h"

/* target_backend -- that device with its operations. It ends the program if there is none of that
 * name, with exit status 77 (a skip) where it cannot be had on this machine. */
const backend *target_backend(void);
/* target_ops -- its operations whose bits do not depend on the machine; its fast ones where it has
 * no others, which target_is_portable tells. */
const ops *target_ops(void);
bool target_is_portable(void);
/* target_symbol -- a function of its plug-in, or of the libraries that the plug-in needs; NULL if
 * there is none of that name. */
void *target_symbol(const char *name);
/* target_index -- which of the host's devices this rank takes there. */
int target_index(void);
/* target_adds_itself -- whether the group's transport is the device's own: in GRAD_ACC_FAST it adds
 * what ranks send in an order of its own. */
bool target_adds_itself(const comm *c);
/* target_comm -- how comm_open is called on it: its sums, its own transport. timeout_s 0: the
 * default. */
comm_config target_comm(double timeout_s);
