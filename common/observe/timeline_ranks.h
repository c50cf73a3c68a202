/* timeline_ranks.h -- whether the timelines of several ranks fit together. */
#pragma once
#include "common/observe/timeline.h"

/* timeline_check_ranks -- every collective has the same name and unit on all ranks of its group,
 * and none of them ends it before all have begun it: a rank needs what the others have. (Of a
 * broadcast it needs the root's only, so that is not compared.) So a clock that is wrong shows.
 *   views   [world_size] by rank
 *   bound_s  how much a clock may be wrong
 *   errors  FSDP_EMISMATCH naming the collective and the ranks; FSDP_ENOMEM */
fsdp_status timeline_check_ranks(const timeline_view *views, int world_size, double bound_s);
