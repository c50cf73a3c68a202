/* streams.h -- shared by the stand-ins for an accelerator's libraries: the device and its streams,
 * handles, faults, messages. A process has one device, whose memory the host cannot touch
 * (common/device/instruments/separate.h). memory.h handles its memory. */
#pragma once
#include <stdbool.h>
#include <sys/queue.h>
#include "common/device/device.h"

EXTERN_C_BEGIN

/* Words for messages; each stand-in defines its own. */
typedef struct sim_words {
    const char *library;  /* "CUDA" */
    const char *device;   /* noun for the device: "GPU" */
    const char *launches; /* noun for what runs there: "kernels" */
    const char *memory;   /* noun for its blocks: "memory of the GPU" */
} sim_words;
extern const sim_words sim_stands_for;

/* sim_die -- end the process with a message and the latest noted launches. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_die(const char *format, ...);
/* sim_number -- a number from the environment; `without` if the variable is not set. */
size_t sim_number(const char *name, size_t without);
/* sim_launch_note -- note the launch of name [a literal] for messages. Returns whether
 * FSDP_SIM_FAULT (name:n) makes this launch fault. sim_launches -- how many were noted so far. */
bool sim_launch_note(const char *name);
unsigned sim_launches(void);

/* sim_device_open -- open the device of this process at the first call. If the program supports
 * FSDP_SCHEDULE, the device follows it. sim_device -- NULL before the first call.
 * sim_device_is_scheduled -- whether FSDP_SCHEDULE was set at the first call. */
fsdp_status sim_device_open(void);
device *sim_device(void);
bool sim_device_is_scheduled(void);

/* ---- handles --------------------------------------------------------------------------------- */

/* The first member of every object with a handle. `what` is the kind of object. A destroyed handle
 * stays recognisable for a while. */
typedef struct sim_handle {
    int what;
} sim_handle;

/* sim_handle_is_not -- NULL if handle points to a live object of this kind; else what it is:
 * "NULL", "destroyed" or "something else". */
const char *sim_handle_is_not(const void *handle, int what);
/* sim_live -- the handle, if it is a live object of this kind; else end the process. noun: "an
 * event". */
void *sim_live(const void *handle, int what, const char *call, const char *noun);
/* sim_handle_destroy -- destroy an object that malloc allocated. Its memory is freed after many
 * others have been destroyed. */
void sim_handle_destroy(void *handle);

/* ---- streams --------------------------------------------------------------------------------- */

/* The second member of every stream object. */
typedef struct sim_queue {
    stream *s;
    event *tail;  /* stands for all work issued, unless `changed` */
    bool changed; /* work was issued after `tail` */
    LIST_ENTRY(sim_queue) link;
} sim_queue;

/* sim_queue_open -- streams of larger priority run first. */
fsdp_status sim_queue_open(sim_queue *q, int priority);
/* sim_queue_close -- wait for the queue's work, then close it. */
void sim_queue_close(sim_queue *q);
/* sim_queue_use -- the queue's stream, for one more call. */
stream *sim_queue_use(sim_queue *q);
/* sim_queue_done -- whether the queue has no work left. */
bool sim_queue_done(sim_queue *q);
/* sim_queues_wait -- wait until no queue has work left. */
void sim_queues_wait(void);

EXTERN_C_END
