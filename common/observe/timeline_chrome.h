/* timeline_chrome.h -- write a timeline in the Chrome trace event format, for Perfetto and
 * chrome://tracing.
 *
 * pid is the rank, tid 0 its host and tid n + 1 its stream n. An item that took time is a slice
 * ("X", microseconds), any other item is an instant ("i"); RECORDs are left out. The title of a
 * wait of the compute stream names its cause: "wait: all-gather h.3". An arrow goes from each
 * collective that the compute stream waits for to the first work after the wait. Each event is one
 * line, so that the lines of several ranks can be joined to one trace. */
#pragma once
#include <stdio.h>
#include "common/observe/timeline.h"

/* timeline_write_chrome -- write the file of one rank. */
void timeline_write_chrome(const timeline_view *v, int world_size, FILE *out);
