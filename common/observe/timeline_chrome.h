/* timeline_chrome.h -- a timeline as a file in the Chrome trace event format, which Perfetto and
 * chrome://tracing show.
 *
 * pid is the rank, tid 0 its host and tid n + 1 its stream n. An item that took time is a slice
 * ("X", microseconds), any other an instant ("i"); RECORDs are left out. A wait of the compute
 * stream is called by its cause, "wait: all-gather h.3". An arrow goes from every collective that
 * the compute stream waits for to the first work after the wait. An event is a line, so that the
 * lines of several ranks make one trace. */
#pragma once
#include <stdio.h>
#include "common/observe/timeline.h"

/* timeline_write_chrome -- the file of one rank. */
void timeline_write_chrome(const timeline_view *v, int world_size, FILE *out);
