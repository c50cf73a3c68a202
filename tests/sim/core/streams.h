/* streams.h -- what stand-ins for the libraries of an accelerator share: the device and its
 * streams, handles, faults, messages. They are those of a device whose memory the host cannot touch
 * (common/device/separate.h). A process has one such device. memory.h is about its memory. */
#pragma once
#include <stdbool.h>
#include <sys/queue.h>
#include "common/device/device.h"

EXTERN_C_BEGIN

/* Each stand-in says whose it is. */
typedef struct sim_words {
    const char *library;  /* "CUDA" */
    const char *device;   /* what its device is called: "GPU" */
    const char *launches; /* what runs there: "kernels" */
    const char *memory;   /* what its blocks are called: "memory of the GPU" */
} sim_words;
extern const sim_words sim_stands_for;

/* sim_die -- end the process with a message, and with the launches that were noted last. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_die(const char *format, ...);
/* sim_number -- a number of the environment. */
size_t sim_number(const char *name, size_t without);
/* sim_launch_note -- name [a literal] is launched: it is noted for messages. Does FSDP_SIM_FAULT
 * (name:n) say that it faults? */
bool sim_launch_note(const char *name);

/* sim_device_open -- the device of this process, with FSDP_SCHEDULE's orders in a program that
 * knows of that; the first call opens it. sim_device: NULL before. sim_device_is_scheduled: whether
 * FSDP_SCHEDULE was set then. */
fsdp_status sim_device_open(void);
device *sim_device(void);
bool sim_device_is_scheduled(void);

/* ---- handles --------------------------------------------------------------------------------- */

/* The first member of what a handle points to. `what` says what it is; a handle that is destroyed
 * stays recognisable for a while, as nothing. */
typedef struct sim_handle {
    int what;
} sim_handle;

/* sim_handle_is_not -- NULL: handle points to a live object of this kind. Else what it is instead:
 * "NULL", "destroyed" or "something else". */
const char *sim_handle_is_not(const void *handle, int what);
/* sim_live -- the handle, if it is that; else the call ends the process. noun: "an event". */
void *sim_live(const void *handle, int what, const char *call, const char *noun);
/* sim_handle_destroy -- of malloc's memory, which is freed when many others have been destroyed. */
void sim_handle_destroy(void *handle);

/* ---- streams --------------------------------------------------------------------------------- */

/* The second member of what a stream's handle points to. */
typedef struct sim_queue {
    stream *s;
    event *tail;  /* stands for all work issued, unless `changed` */
    bool changed; /* work has been issued since */
    LIST_ENTRY(sim_queue) link;
} sim_queue;

/* sim_queue_open -- larger priorities go first. */
fsdp_status sim_queue_open(sim_queue *q, int priority);
/* sim_queue_close -- waits for its work. */
void sim_queue_close(sim_queue *q);
/* sim_queue_use -- its stream, for one more call. */
stream *sim_queue_use(sim_queue *q);
/* sim_queue_done -- has it no work any more? */
bool sim_queue_done(sim_queue *q);
/* sim_queues_wait -- until none has. */
void sim_queues_wait(void);

EXTERN_C_END
