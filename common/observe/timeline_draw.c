/* timeline_draw.c -- what both pictures of a step share; see timeline_draw.h. */
#include "common/observe/timeline_draw.h"
#include <string.h>
#include "common/observe/timeline_stats.h"

const char *draw_class_name(draw_class c)
{
    static const char *const NAMES[DRAW_CLASSES] = {[DRAW_FORWARD] = "forward",
                                                    [DRAW_BACKWARD] = "backward",
                                                    [DRAW_OPTIMIZER] = "optimizer, other",
                                                    [DRAW_GATHER] = "gather",
                                                    [DRAW_REDUCE] = "reduce",
                                                    [DRAW_SIDE] = "copy, cast",
                                                    [DRAW_WAIT] = "wait (exposed)"};
    FSDP_ASSERT((int)c >= 0 && c < DRAW_CLASSES);
    return NAMES[c];
}

draw_class draw_class_of(const timeline_view *v, int64_t i)
{
    const timeline_item *item = &v->items[i];
    bool computes = item->stream == timeline_compute(v);
    if (!(item->end_s > item->begin_s) || item->stream == TIMELINE_HOST)
        return DRAW_NONE;
    if (item->kind == TIMELINE_COLLECTIVE)
        return strstr(item->name, "reduce") ? DRAW_REDUCE : DRAW_GATHER;
    if (item->kind == TIMELINE_WAIT && computes && timeline_cause(v, i) != TIMELINE_NONE)
        return DRAW_WAIT;
    if (item->kind != TIMELINE_WORK)
        return DRAW_NONE;
    if (!computes)
        return DRAW_SIDE;
    return item->phase == 'f' ? DRAW_FORWARD : item->phase == 'b' ? DRAW_BACKWARD : DRAW_OPTIMIZER;
}

fsdp_status draw_window_of(const timeline_view *views, int n_views, uint64_t step, draw_window *out)
{
    *out = (draw_window){.step = step};
    for (int r = 0; r < n_views; r++) {
        timeline_step s;
        TRY(timeline_find_step(&views[r], step, &s));
        out->begin_s = r == 0 || s.begin_s < out->begin_s ? s.begin_s : out->begin_s;
        out->end_s = r == 0 || s.end_s > out->end_s ? s.end_s : out->end_s;
    }
    return FSDP_OK;
}
