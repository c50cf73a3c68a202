/* backend.h -- a backend: a kind of device with its operations and its transport.
 *
 * A backend is linked into the program or is a plug-in. A plug-in is a shared object that is opened
 * when its device is asked for, so the program itself needs no library that only some machines
 * have. It exports one symbol, `fsdp_backend`, and calls functions of the program. */
#pragma once
#include <stdint.h>
#include "common/device/device.h"
#include "common/ops/ops.h"

EXTERN_C_BEGIN

typedef struct backend {
    const char *name;
    const device_backend *device;
    int (*n_devices)(void); /* devices on this host; 0: none; device_open says why */
    const ops *(*fast)(void);
    const ops *(*portable)(void);        /* NULL: no operations give the CPU's bits */
    const struct comm_transport *native; /* NULL: collectives go through host memory */
} backend;

/* abi must equal BACKEND_ABI, which the Makefile derives from the headers: the program and the
 * plug-in were then built from the same headers. */
typedef struct backend_plugin {
    uint64_t abi;
    backend backend;
} backend_plugin;

#define BACKEND_SYMBOL "fsdp_backend"
extern const backend_plugin fsdp_backend;

EXTERN_C_END
