/* timeline_chrome.h -- timelines as files in the Chrome trace event format, which Perfetto and
 * chrome://tracing show, and back again.
 *
 *   timeline_write_chrome           timeline_read_chrome -> timeline_read ... timeline_free
 *
 * pid is the rank, tid 0 its host and tid n + 1 its stream n. An item that took time is a slice
 * ("X", microseconds), any other an instant ("i"). Its index is args.item, so nothing is lost. A
 * wait of the compute stream is called by its cause, "wait: all-gather h.3". An arrow goes from
 * every collective that the compute stream waits for to the first work behind the wait. */
#pragma once
#include "common/observe/timeline.h"

/* What a file says of the job beside its ranks' timelines. */
typedef struct timeline_job {
    int world_size;
    double offset_s; /* what is added to the clock of the rank to get rank 0's */
    double bound_s;  /* how far off that may be; 0 where ranks share a clock */
} timeline_job;

/* timeline_write_chrome -- a file of one rank, or of several.
 *   views   [n_views]
 *   path    appears whole or not at all (atomic_file.h)
 *   errors  FSDP_EIO */
fsdp_status timeline_write_chrome(const timeline_view *views, int n_views, const timeline_job *job,
                                  const char *path);

/* timeline_read_chrome -- the file of one rank, as it was written: times are of rank 0's clock.
 *   *out, *job  untouched after an error; the caller frees *out
 *   errors      FSDP_EIO it cannot be read; FSDP_EINVAL it is no such file, a slice does not end,
 * an arrow connects nothing; they name the file and the event; FSDP_ENOMEM */
fsdp_status timeline_read_chrome(const char *path, timeline **out, timeline_job *job);
