/* timeline_watch.h -- record the acts of a device and its collectives in a timeline, and count them
 * in a profile.
 *
 *   timeline_watch_create (watches from then on) -> timeline_watch_to (a timeline),
 *   timeline_watch_step ... -> device and group are closed, or get another watch
 *   -> timeline_watch_free
 *
 * Copies, fills and launches with a name become WORK of the layer that the host is in. Launches
 * without a name are part of a collective or too small to show; they are left out, like allocations
 * and frees. One host thread issues everything; work may run in any thread. The profile counts each
 * named launch that was issued while a timeline was recording, even if it runs in a later step, and
 * each collective that ends. */
#pragma once
#include "common/comm/comm.h"
#include "common/device/instruments/order_check.h"
#include "common/observe/profile.h"
#include "common/observe/timeline.h"

typedef struct timeline_watch timeline_watch;

/* timeline_watch_create -- watch d and c, without recording yet. NULL if out of memory.
 *   p      counts launches and collectives; may be NULL
 *   order  also receives what is issued on d; may be NULL */
timeline_watch *timeline_watch_create(device *d, comm *c, profile *p, order_check *order);
/* timeline_watch_free -- free w after the device and the group were closed or got another watch.
 * NULL is accepted. */
void timeline_watch_free(timeline_watch *w);

/* timeline_watch_to -- record what is issued from now on in t, and count its launches. t is
 * borrowed until the next call; NULL: do neither. Call it when no stream has work. A WAIT for an
 * event that was recorded before this call has no `after`. */
void timeline_watch_to(timeline_watch *w, timeline *t);
/* timeline_watch_step -- record that the host begins step `step`. */
void timeline_watch_step(timeline_watch *w, int64_t step);
