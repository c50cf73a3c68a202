/* timeline_watch.h -- fills a timeline with what a device and its collectives do.
 *
 *   timeline_watch_create -> device_set_watch, comm_set_watch (the four functions below)
 *   -> timeline_watch_to (a timeline), timeline_watch_step ... -> both watches off
 *   -> timeline_watch_free
 *
 * A launch with a name, a copy and a fill are WORK of the layer that the host was in. A launch
 * without a name is a part of a collective, or too small to show; it is left out, as are allocs and
 * frees. All is issued from one host thread; it runs in any. */
#pragma once
#include "common/comm/comm.h"
#include "common/observe/timeline.h"

typedef struct timeline_watch timeline_watch;

/* timeline_watch_create -- of a device, with its times; records nothing yet. NULL when there is no
 * memory. */
timeline_watch *timeline_watch_create(const device *d);
/* timeline_watch_free -- when neither device nor comm knows it any more. NULL is accepted. */
void timeline_watch_free(timeline_watch *w);

/* timeline_watch_to -- what is issued from now on is recorded in t, which is borrowed until the
 * next call; NULL: nowhere. Call it when no stream has work. Events recorded before count as never
 * recorded: their WAITs have no `after`. */
void timeline_watch_to(timeline_watch *w, timeline *t);
/* timeline_watch_step -- the host begins step `step`. */
void timeline_watch_step(timeline_watch *w, int64_t step);

/* timeline_watch_issued, timeline_watch_ran -- the functions of a device_watch whose self is the
 * timeline_watch; the other two are for a comm_watch. Another watch may call them instead: `ran`
 * and `ended` with the token that `issued` returned, unless that is 0. */
uint64_t timeline_watch_issued(void *watch, const device_act *act);
void timeline_watch_ran(void *watch, const device_act *act);
uint64_t timeline_watch_comm_issued(void *watch, const comm_record *r);
void timeline_watch_comm_ended(void *watch, const comm_record *r);
