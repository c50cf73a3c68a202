/* accel_lib.h -- what the tests of accelerators as devices share. */
#pragma once
#include "tests/unit/device_lib.h"
#include "tests/unit/target_lib.h"

/* need_accel -- skips the test where the device is not of this kind: "cuda", "npu"; NULL: neither.
 * need_sim: or where it is no stand-in, which alone can be told to be a wrong machine. */
void need_accel(const char *kind);
void need_sim(const char *kind);

/* open_accel -- the accelerator of FSDP_DEVICE; skips the test where that is none. */
device *open_accel(const device_config *more);

/* plugin_symbol -- a function of the plug-in that is not in its table. */
void *plugin_symbol(const char *name);

/* open_gate -- of close_gate. run_open_gate: the same in a little while, as a task of the host;
 * args: where the gate is. */
void open_gate(sem_t *gate);
fsdp_status run_open_gate(void *args, int n_threads);

/* expect_no_open -- device_open gives this status, with these words, where the variable has this
 * value; name NULL: none. */
void expect_no_open(const char *name, const char *value, int index, fsdp_status status,
                    const char *words);

/* output_of -- what this program prints as `name`, with the variable ("A=B") set; valid until the
 * next call. expect_output: words are in the text. */
const char *output_of(const char *name, const char *variable);
void expect_output(const char *text, const char *words);
