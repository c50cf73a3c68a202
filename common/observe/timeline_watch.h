/* timeline_watch.h -- fills a timeline with what a device and its collectives do, and counts it in
 * a profile.
 *
 *   timeline_watch_create (watches from then on) -> timeline_watch_to (a timeline),
 *   timeline_watch_step ... -> device and group are closed, or watched by another
 *   -> timeline_watch_free
 *
 * A launch with a name, a copy and a fill are WORK of the layer that the host was in. A launch
 * without a name is a part of a collective, or too small to show; it is left out, as are allocs and
 * frees. All is issued from one host thread; it runs in any. The profile counts a
 * launch that was issued while a timeline recorded, also if a stream runs the launch in a later
 * step, and every collective that ends. */
#pragma once
#include "common/comm/comm.h"
#include "common/device/order_check.h"
#include "common/observe/profile.h"
#include "common/observe/timeline.h"

typedef struct timeline_watch timeline_watch;

/* timeline_watch_create -- watch d and c; nothing is recorded yet. NULL when there is no memory.
 *   p      NULL, or launches and collectives are counted there
 *   order  NULL, or it is told too of what is issued on d */
timeline_watch *timeline_watch_create(device *d, comm *c, profile *p, order_check *order);
/* timeline_watch_free -- when neither device nor comm knows it any more. NULL is accepted. */
void timeline_watch_free(timeline_watch *w);

/* timeline_watch_to -- what is issued from now on is recorded in t, which is borrowed until the
 * next call, and counted; NULL: nowhere. Call it when no stream has work. Events recorded before
 * count as never recorded: their WAITs have no `after`. */
void timeline_watch_to(timeline_watch *w, timeline *t);
/* timeline_watch_step -- the host begins step `step`. */
void timeline_watch_step(timeline_watch *w, int64_t step);
