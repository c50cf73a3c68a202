/* fsdp_trace_main.c -- build/fsdp_trace DIR: reads the traces that a run with --profile DIR wrote.
 *
 * It checks that they are whole and fit together, and prints for every step and rank how long the
 * compute stream worked, how much communication was exposed, and the longest stall with its cause.
 * --timeline and --svg show a step. --link-gbit runs the same operations once more in virtual time,
 * over a network of that rate. Exit status 0: all is well; 1: not, and why. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/options.h"
#include "common/observe/timeline_chrome.h"
#include "common/observe/timeline_draw.h"
#include "common/observe/timeline_ranks.h"
#include "common/observe/timeline_stats.h"
#include "common/observe/virtual_time.h"

/* How much a clock may be wrong where nobody says: between processes of a host it is not. */
#define BOUND_S 1e-3

enum { MOST_DRAWN = 4 };

typedef struct trace_config {
    bool timeline;
    const char *svg, *merge;
    int64_t step;
    double link_gbit, link_us;
    bool ahead;
} trace_config;

#define FIELD(f) .offset = offsetof(trace_config, f)

static const option_spec OPTIONS[] = {
    {.name = "step",
     .kind = OPT_INT,
     FIELD(step),
     .def = "-1",
     .min = -1,
     .max = 9e15,
     .arg = "N",
     .group = "Pictures of a step",
     .help = "which one; -1: the first of the trace"},
    {.name = "timeline", .kind = OPT_BOOL, FIELD(timeline), .help = "print it as text"},
    {.name = "svg",
     .kind = OPT_STRING,
     FIELD(svg),
     .arg = "FILE",
     .help = "draw it, up to four ranks"},
    {.name = "merge",
     .kind = OPT_STRING,
     FIELD(merge),
     .arg = "FILE",
     .group = "For Perfetto",
     .help = "write one trace of all ranks"},
    {.name = "link-gbit",
     .kind = OPT_DOUBLE,
     FIELD(link_gbit),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .group = "Virtual time: the recorded operations over another network",
     .help = "its rate in Gbit/s; the pictures are then of virtual time (0: as recorded)"},
    {.name = "link-us",
     .kind = OPT_DOUBLE,
     FIELD(link_us),
     .def = "50",
     .min = 0,
     .max = 1e9,
     .help = "its latency in microseconds"},
    {.name = "ahead",
     .kind = OPT_BOOL,
     FIELD(ahead),
     .help = "the host ran ahead of the compute stream (FSDP_ASYNC_COMPUTE=1)"},
    {0}};

/* All ranks' traces. */
typedef struct traces {
    int world_size, n_read;
    timeline **timelines; /* [world_size] */
    timeline_view *views; /* [world_size] */
    timeline_job job;     /* of the rank whose clock is worst */
    virtual_result again; /* with --link-gbit */
    timeline_view *shown; /* [world_size] views, or those of `again` */
} traces;

static void traces_free(traces *t)
{
    for (int r = 0; r < t->n_read; r++)
        timeline_free(t->timelines[r]);
    virtual_time_free(&t->again);
    free(t->timelines);
    free(t->views);
    *t = (traces){0};
}

/* ---- reading --------------------------------------------------------------------------------- */

static fsdp_status read_rank(traces *t, const char *dir, int rank)
{
    char path[PATH_MAX];
    timeline_job job;
    timeline *read;
    if ((size_t)snprintf(path, sizeof path, "%s/trace-rank-%d.json", dir, rank) >= sizeof path)
        return fsdp_error(FSDP_EINVAL, "pass a shorter path", "the path of %.40s... is too long",
                          dir);
    TRY(timeline_read_chrome(path, &read, &job));
    if (rank == 0) {
        t->world_size = job.world_size;
        t->timelines = calloc((size_t)job.world_size, sizeof *t->timelines);
        t->views = calloc((size_t)job.world_size, sizeof *t->views);
    }
    if (!t->timelines || !t->views) {
        timeline_free(read);
        return fsdp_error(FSDP_ENOMEM, "", "no memory for the traces of %d ranks", job.world_size);
    }
    t->timelines[rank] = read;
    t->views[rank] = timeline_read(read);
    t->n_read = rank + 1;
    t->job.bound_s = job.bound_s > t->job.bound_s ? job.bound_s : t->job.bound_s;
    if (job.world_size != t->world_size || t->views[rank].rank != rank)
        return fsdp_error(FSDP_EINVAL, "pass the directory of one run; write it again",
                          "%s: got the trace of rank %d of %d, expected rank %d of %d", path,
                          t->views[rank].rank, job.world_size, rank, t->world_size);
    return FSDP_OK;
}

/* The first step of rank 0, or that of --step. */
static fsdp_status pick_step(const traces *t, int64_t wanted, uint64_t *step)
{
    timeline_step s;
    bool found;
    *step = (uint64_t)wanted;
    if (wanted >= 0)
        return FSDP_OK;
    TRY(timeline_next_step(&t->views[0], 0, &s, &found));
    if (!found)
        return fsdp_error(FSDP_EINVAL, "train for two steps or more: the first is not recorded",
                          "the traces hold no step");
    *step = s.step;
    return FSDP_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_step(const timeline_view *v, const timeline_step *s)
{
    char stall[128] = "none";
    if (s->stall.cause != TIMELINE_NONE) {
        const timeline_item *cause = &v->items[s->stall.cause];
        snprintf(stall, sizeof stall, "%.3f ms, %s %s", 1e3 * s->stall.seconds, cause->name,
                 cause->unit);
    }
    printf("%5llu %5d %11.3f %11.3f %11.3f %11.3f %7.1f%%  %s\n", (unsigned long long)s->step,
           v->rank, 1e3 * (s->end_s - s->begin_s), 1e3 * s->compute_s, 1e3 * s->comm_s,
           1e3 * s->exposed_s, 100 * timeline_overlap(s), stall);
}

/* Steps in order, and in each the ranks: every rank has the same ones. */
static fsdp_status print_steps(const traces *t)
{
    printf("%5s %5s %11s %11s %11s %11s %8s  longest stall\n", "step", "rank", "wall ms",
           "compute ms", "comm ms", "exposed ms", "overlap");
    for (int64_t at = 0;;) {
        timeline_step first, s;
        bool found;
        TRY(timeline_next_step(&t->views[0], at, &first, &found));
        if (!found)
            return FSDP_OK;
        at = first.end;
        for (int r = 0; r < t->world_size; r++) {
            TRY(timeline_find_step(&t->views[r], first.step, &s));
            print_step(&t->views[r], &s);
        }
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static fsdp_status draw(const traces *t, const trace_config *c)
{
    draw_window window;
    uint64_t step;
    int n = t->world_size < MOST_DRAWN ? t->world_size : MOST_DRAWN;
    if (!c->timeline && !c->svg)
        return FSDP_OK;
    TRY(pick_step(t, c->step, &step));
    TRY(draw_window_of(t->shown, t->world_size, step, &window));
    if (c->timeline)
        timeline_draw_text(stdout, t->shown, t->world_size, &window);
    return c->svg ? timeline_draw_svg(t->shown, n, &window, c->svg) : FSDP_OK;
}

/* The longest that any rank takes for the step. */
static fsdp_status step_of_all(const timeline_view *views, int n, uint64_t step, double *seconds)
{
    timeline_step s;
    *seconds = 0;
    for (int r = 0; r < n; r++) {
        TRY(timeline_find_step(&views[r], step, &s));
        *seconds = s.end_s - s.begin_s > *seconds ? s.end_s - s.begin_s : *seconds;
    }
    return FSDP_OK;
}

/* Every operation takes as long as it was recorded to take, and every collective what the given
 * network needs. */
static fsdp_status run_again(traces *t, const trace_config *c)
{
    virtual_config costs = {.link = {1e-6 * c->link_us, 1e9 / 8 * c->link_gbit},
                            .inline_compute = !c->ahead};
    TRY(virtual_time_run(t->views, t->world_size, &costs, &t->again));
    t->shown = t->again.views;
    printf("%5s %13s %12s %8s\n", "step", "recorded ms", "virtual ms", "ratio");
    for (int64_t at = 0;;) {
        timeline_step s;
        bool found;
        double recorded_s, virtual_s;
        TRY(timeline_next_step(&t->views[0], at, &s, &found));
        if (!found)
            return FSDP_OK;
        at = s.end;
        TRY(step_of_all(t->views, t->world_size, s.step, &recorded_s));
        TRY(step_of_all(t->again.views, t->world_size, s.step, &virtual_s));
        printf("%5llu %13.3f %12.3f %8.3f\n", (unsigned long long)s.step, 1e3 * recorded_s,
               1e3 * virtual_s, virtual_s / recorded_s);
    }
}

static fsdp_status flush(void)
{
    return fflush(stdout) == 0 ? FSDP_OK
                               : fsdp_error(FSDP_EIO, "send the output elsewhere",
                                            "cannot write to standard output");
}

static fsdp_status trace(traces *t, const char *dir, const trace_config *c)
{
    TRY(read_rank(t, dir, 0));
    for (int r = 1; r < t->world_size; r++)
        TRY(read_rank(t, dir, r));
    TRY(timeline_check_ranks(t->views, t->world_size, BOUND_S + t->job.bound_s));
    TRY(print_steps(t));
    t->shown = t->views;
    if (c->link_gbit > 0)
        TRY(run_again(t, c));
    TRY(draw(t, c));
    t->job.world_size = t->world_size;
    if (c->merge)
        TRY(timeline_write_chrome(t->views, t->world_size, &t->job, c->merge));
    return FSDP_OK;
}

/* DIR may stand anywhere: it is taken out, and the rest are options. */
static fsdp_status parse(int argc, char **argv, trace_config *c, const char **dir)
{
    int n = 1;
    *dir = NULL;
    for (int i = 1; i < argc; i++) {
        bool is_value = i > 1 && strncmp(argv[i - 1], "--", 2) == 0 && !strchr(argv[i - 1], '=') &&
                        strcmp(argv[i - 1], "--timeline") != 0 &&
                        strcmp(argv[i - 1], "--ahead") != 0;
        if (strncmp(argv[i], "--", 2) == 0 || is_value || *dir)
            argv[n++] = argv[i];
        else
            *dir = argv[i];
    }
    TRY(options_parse(OPTIONS, "fsdp_trace", n, argv, c));
    if (!*dir)
        return fsdp_error(FSDP_EINVAL, "build/fsdp_trace DIR, of a run with --profile DIR",
                          "got no directory");
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    trace_config c = {0};
    traces t = {0};
    const char *dir;
    fsdp_status status = parse(argc, argv, &c, &dir);
    if (status == FSDP_HELP)
        status = options_print_help(OPTIONS, "fsdp_trace DIR",
                                    "reads the traces that fsdp_train --profile DIR wrote");
    else if (status == FSDP_OK)
        status = trace(&t, dir, &c);
    if (status == FSDP_OK)
        status = flush();
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    traces_free(&t);
    return status == FSDP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
