/* backends.h -- the devices that --device names, each with what belongs to it. A new one is a row.
 *
 *   backend_check (of the option) -> backend_of -> device_open, ops, transport */
#pragma once
#include "common/device/device.h"
#include "common/ops/ops.h"

/* For an option of kind OPT_ENUM: its value is the number of the row. */
#define BACKEND_CHOICES "cpu|separate|cuda|npu"
#define BACKEND_HELP                                                                               \
    "where to compute (separate is for tests: a CPU whose device memory the host cannot touch)"

typedef struct backend {
    const char *name;
    const device_backend *device; /* NULL: not there yet */
    int (*n_devices)(void);       /* that this host has */
    const ops *(*fast)(void), *(*portable)(void);
    const struct comm_transport *native; /* NULL: collectives go through host memory */
} backend;

/* backend_of -- row `number` of the table; valid for ever. */
const backend *backend_of(int number);
/* backend_check -- whether it is there.
 *   errors  FSDP_EINVAL naming --device */
fsdp_status backend_check(int number);
/* backend_device_index -- which of the host's devices a rank of the host computes on. Ranks share
 * them in turn: 4 ranks, 2 devices -> 0,1,0,1; the CPU is one device for all. */
int backend_device_index(int local_rank, int n_devices);
