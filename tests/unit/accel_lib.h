/* accel_lib.h -- what the device tests of accelerators share. */
#pragma once
#include "tests/unit/device_lib.h"
#include "tests/unit/target_lib.h"

/* need_accel -- skips the test unless the device is of this kind: "cuda" or "npu"; NULL: either.
 * need_sim: also skips unless the device is a stand-in, which alone can play a wrong machine. */
void need_accel(const char *kind);
void need_sim(const char *kind);

/* open_accel -- opens the accelerator of FSDP_DEVICE; skips the test if that is none. */
device *open_accel(const device_config *more);

/* plugin_symbol -- a function of the plug-in that its table does not have. */
void *plugin_symbol(const char *name);

/* open_gate -- opens the gate of close_gate. run_open_gate: the same a little later, as a host
 * task; args points to the gate's address. */
void open_gate(sem_t *gate);
fsdp_status run_open_gate(void *args, int n_threads);

/* expect_no_open -- device_open fails with this status and these words when the variable `name` has
 * this value; name NULL: no variable. */
void expect_no_open(const char *name, const char *value, int index, fsdp_status status,
                    const char *words);

/* output_of -- the output of this program called with `name`, with the variable ("A=B") set; valid
 * until the next call. expect_output: text must have these words. */
const char *output_of(const char *name, const char *variable);
void expect_output(const char *text, const char *words);
