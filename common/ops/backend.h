/* backend.h -- what a kind of device brings along: the device, its maths and its transport.
 *
 * A backend is part of the program, or a plug-in: a shared object that is opened when somebody asks
 * for the device. So the program needs no library that only some machines have. A plug-in exports
 * one symbol, `fsdp_backend`, and calls the functions of the program that opened it. */
#pragma once
#include <stdint.h>
#include "common/device/device.h"
#include "common/ops/ops.h"

EXTERN_C_BEGIN

typedef struct backend {
    const char *name;
    const device_backend *device;
    int (*n_devices)(void); /* that this host has; 0: none, which device_open explains */
    const ops *(*fast)(void);
    const ops *(*portable)(void);        /* NULL: it has no operations with the CPU's bits */
    const struct comm_transport *native; /* NULL: collectives go through host memory */
} backend;

/* The program and a plug-in were built from the same headers if `abi` is BACKEND_ABI, which the
 * Makefile makes of them. */
typedef struct backend_plugin {
    uint64_t abi;
    backend backend;
} backend_plugin;

#define BACKEND_SYMBOL "fsdp_backend"
extern const backend_plugin fsdp_backend;

EXTERN_C_END
