/* profile_run.c -- see profile_run.h.
 *
 * A timeline_watch receives the operations of the device and the collectives of the group; the
 * training loop reports when a step begins (train_observer). A step ends with its last collective,
 * the gather of the losses. An evaluation after a step counts towards the step; a checkpoint does
 * not.
 *
 * The first step warms up and is left out. Every other step is recorded in a timeline, from which
 * the stalls of the compute stream are counted in the profile. The timeline of the first
 * TRACED_STEPS of these steps is kept and written. The timeline of a later step is dropped when the
 * next step begins.
 *
 * Each rank keeps its own timeline, writes its own trace, and draws its own lanes. The ranks
 * exchange the figures of their steps, so that all know where a picture begins and ends. Rank 0
 * receives the lanes as text, and writes the pictures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/base/environment.h"
#include "common/observe/clock_offset.h"
#include "common/observe/timeline_chrome.h"
#include "common/observe/timeline_draw.h"
#include "common/observe/timeline_watch.h"
#include "common/ops/profile_roof.h"
#include "common/steps/profile_run.h"

/* Three steps show what is the same in every step and what is not. A step of GPT-2 124m on 2 ranks
 * has about 850 items per rank: 0.15 MB of memory, 0.2 MB of JSON. PIECE_BYTES: lanes are sent in
 * pieces of this size. */
enum { TRACED_STEPS = 3, PIECE_BYTES = 2048 };
static const char HINT[] = "pass a --profile directory that can be written";

/* A rank's traced steps, known to all ranks. */
typedef struct rank_steps {
    int n_steps, n_lanes;
    double axis_s; /* from FSDP_PROFILE_AXIS_MS; rank 0's is used for all */
    timeline_step steps[TRACED_STEPS];
} rank_steps;

struct profile_run {
    const char *dir;
    char caption[128];
    device *dev;
    comm *world;
    profile *profile;
    timeline_watch *watch;
    timeline *traced, *latest; /* the first TRACED_STEPS; a later step; on rank 0's clock */
    timeline *current;         /* traced or latest; NULL between steps */
    int64_t n_begun;           /* number of steps begun */
    int64_t at_item;           /* index in current of the first item of the open step */
    bool told_lost;
    rank_steps *ranks; /* [ranks of world], set when the files are written */
    int n_traced;      /* number of traced steps that all ranks have */
};

/* ---- steps ---------------------------------------------------------------------------------- */

static void add_time(profile_run *p, profile_kind kind, const char *name, double seconds)
{
    profile_add(p->profile, kind, &(work_key){.name = name}, 1, seconds, (work_cost){0});
}

/* Count the time of the open step in which the compute stream did not run operations. */
static void count_stalls(profile_run *p)
{
    timeline_view v = timeline_read(p->current);
    timeline_step step;
    if (v.n_lost > 0 && !p->told_lost)
        fprintf(stderr,
                "note: rank %d: a step has more operations than a timeline holds; what it "
                "waited for is neither counted nor drawn\n",
                v.rank);
    p->told_lost = p->told_lost || v.n_lost > 0;
    if (v.n_lost > 0 || !timeline_next_step(&v, p->at_item, &step))
        return;
    timeline_cursor c = {step.first, step.begin_s};
    timeline_stall stall;
    while (timeline_next_stall(&v, &c, step.end, &stall))
        add_time(p, PROFILE_EXPOSED, stall.cause_name, stall.seconds);
    add_time(p, PROFILE_REST, "copies and fills", step.move_s);
    add_time(p, PROFILE_REST, "waits for other streams", step.wait_s);
}

/* End the open step, if there is one. */
static void step_over(profile_run *p)
{
    if (!p->current)
        return;
    count_stalls(p);
    p->current = NULL;
    timeline_watch_to(p->watch, NULL);
}

void profile_run_step(profile_run *p, int64_t step)
{
    if (!p)
        return;
    step_over(p);
    profile_step_begin(p->profile);
    if (p->n_begun++ == 0)
        return;
    p->current = p->n_begun - 1 <= TRACED_STEPS ? p->traced : p->latest;
    if (p->current == p->latest)
        timeline_clear(p->latest);
    p->at_item = timeline_read(p->current).n_items;
    timeline_watch_to(p->watch, p->current);
    timeline_watch_step(p->watch, step);
}

void profile_run_pause(profile_run *p)
{
    if (!p)
        return;
    step_over(p);
    profile_step_end(p->profile);
}

/* ---- traced steps ---------------------------------------------------------------------------- */

/* The least length of the axis. FSDP_PROFILE_AXIS_MS gives the pictures of several runs the same
 * axis, so that they can be compared. */
static double axis_s(void)
{
    return 1e-3 * environment_number("FSDP_PROFILE_AXIS_MS");
}

/* Exchange the figures of the traced steps among the ranks. If the timeline became full, its last
 * step is incomplete and is left out. */
static fsdp_status find_steps(profile_run *p)
{
    const timeline_view v = timeline_read(p->traced);
    timeline_step s = {0};
    rank_steps mine;
    void *all;
    memset(&mine, 0, sizeof mine); /* the padding is sent too */
    mine.n_lanes = draw_lanes(&v);
    mine.axis_s = axis_s();
    while (mine.n_steps < TRACED_STEPS && timeline_next_step(&v, s.end, &s))
        mine.steps[mine.n_steps++] = s;
    if (v.n_lost > 0 && mine.n_steps > 0)
        mine.n_steps--;
    TRY(comm_host_gather(p->world, "traced steps", &mine, sizeof mine, &all));
    p->ranks = all;
    p->n_traced = TRACED_STEPS;
    for (int r = 0; r < comm_size(p->world); r++)
        p->n_traced = p->ranks[r].n_steps < p->n_traced ? p->ranks[r].n_steps : p->n_traced;
    return FSDP_OK;
}

static void print_steps(const profile_run *p, FILE *out)
{
    fprintf(out,
            "\n| %5s | %5s | %11s | %11s | %11s | %11s | %7s | %-32s |\n"
            "|------:|------:|------------:|------------:|------------:|------------:|--------:|"
            "----------------------------------|\n",
            "step", "rank", "wall ms", "compute ms", "comm ms", "exposed ms", "overlap",
            "longest stall");
    const int n_ranks = comm_size(p->world);
    for (int i = 0; i < p->n_traced * n_ranks; i++) {
        const int r = i % n_ranks;
        const timeline_step *s = &p->ranks[r].steps[i / n_ranks];
        char stall[128] = "none";
        if (*s->stall.cause_name)
            snprintf(stall, sizeof stall, "%.3f ms, %s", 1e3 * s->stall.seconds,
                     s->stall.cause_name);
        fprintf(out, "| %5llu | %5d | %11.3f | %11.3f | %11.3f | %11.3f | %6.1f%% | %-32s |\n",
                (unsigned long long)s->step, r, 1e3 * (s->end_s - s->begin_s), 1e3 * s->compute_s,
                1e3 * s->comm_s, 1e3 * s->exposed_s, 100 * timeline_overlap(s), stall);
    }
}

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "--profile: no memory for the pictures");
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* Step k from its first beginning on any rank to its last end. */
static draw_window window_of(const profile_run *p, int k)
{
    draw_window w = {p->ranks->steps[k].step, INFINITY, 0, p->ranks->axis_s, p->caption};
    for (int r = 0; r < comm_size(p->world); r++) {
        w.begin_s = fmin(w.begin_s, p->ranks[r].steps[k].begin_s);
        w.end_s = fmax(w.end_s, p->ranks[r].steps[k].end_s);
    }
    return w;
}

/* Print the texts of the first n ranks to out, in the order of the ranks; out is NULL except on
 * rank 0. Each round gathers the next piece of every text. A text's last piece is not full. */
static fsdp_status print_all(comm *world, const char *text, int n, FILE *out)
{
    char **rounds = NULL;
    int n_rounds = 0;
    fsdp_status status = FSDP_OK;
    for (bool more = true; more && status == FSDP_OK;) {
        char **longer = realloc(rounds, (size_t)(n_rounds + 1) * sizeof *rounds);
        char piece[PIECE_BYTES] = "";
        void *all = NULL;
        rounds = longer ? longer : rounds;
        status = comm_agree(world, longer ? FSDP_OK : no_memory());
        snprintf(piece, sizeof piece, "%.*s", PIECE_BYTES - 1, text); /* reads only this piece */
        text += strlen(piece);
        if (status == FSDP_OK)
            status = comm_host_gather(world, "lanes", piece, sizeof piece, &all);
        more = false;
        for (int r = 0; r < n && status == FSDP_OK; r++)
            more = more || strlen((char *)all + (size_t)r * PIECE_BYTES) == PIECE_BYTES - 1;
        if (status == FSDP_OK)
            rounds[n_rounds++] = all;
    }
    for (int i = 0; i < n * n_rounds && out && status == FSDP_OK; i++)
        fputs(rounds[i % n_rounds] + (size_t)(i / n_rounds) * PIECE_BYTES, out);
    for (int i = 0; i < n_rounds; i++)
        free(rounds[i]);
    free(rounds);
    return status;
}

static const draw_format *const PICTURES[] = {&draw_text, &draw_svg};

/* How many of the first n ranks are drawn, and the number of their lanes. */
static draw_count count_drawn(const profile_run *p, const draw_format *format, int n)
{
    draw_count c = {0};
    for (; c.n_ranks < n && c.n_ranks < format->most_ranks; c.n_ranks++)
        c.n_lanes += p->ranks[c.n_ranks].n_lanes;
    return c;
}

/* Write the lanes of all ranks in a step to out, on rank 0. */
static fsdp_status put_lanes(const profile_run *p, const draw_format *format, const draw_window *w,
                             FILE *out)
{
    const timeline_view v = timeline_read(p->traced);
    char *text = NULL;
    size_t bytes = 0;
    FILE *mine = open_memstream(&text, &bytes);
    if (mine && v.rank < format->most_ranks)
        format->lanes(mine, w, &v, count_drawn(p, format, v.rank));
    const bool drawn = mine && fclose(mine) == 0;
    fsdp_status status = comm_agree(p->world, drawn ? FSDP_OK : no_memory());
    if (status == FSDP_OK)
        status =
            print_all(p->world, text, count_drawn(p, format, comm_size(p->world)).n_ranks, out);
    free(text);
    return status;
}

static fsdp_status write_picture(const profile_run *p, const draw_format *format)
{
    const draw_count all = count_drawn(p, format, comm_size(p->world));
    atomic_file file = {0};
    bool writes = comm_rank(p->world) == 0;
    fsdp_status status = comm_agree(
        p->world, writes ? atomic_file_open_in(&file, p->dir, format->file_name, HINT) : FSDP_OK);
    int k = format->last_step_only ? p->n_traced - 1 : 0;
    for (; k < p->n_traced && status == FSDP_OK; k++) {
        draw_window w = window_of(p, k);
        if (writes)
            format->head(file.out, &w, all);
        status = put_lanes(p, format, &w, file.out);
        if (writes)
            format->foot(file.out, &w);
    }
    if (status == FSDP_OK)
        return comm_agree(p->world, writes ? atomic_file_commit(&file) : FSDP_OK);
    atomic_file_cancel(&file);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static fsdp_status write_own(const profile_run *p)
{
    const timeline_view v = timeline_read(p->traced);
    char name[64];
    atomic_file file = {0};
    snprintf(name, sizeof name, "profile-rank-%d.csv", v.rank);
    TRY(atomic_file_open_in(&file, p->dir, name, HINT));
    profile_print_csv(p->profile, file.out);
    TRY(atomic_file_commit(&file));
    snprintf(name, sizeof name, "trace-rank-%d.json", v.rank);
    TRY(atomic_file_open_in(&file, p->dir, name, HINT));
    timeline_write_chrome(&v, comm_size(p->world), file.out);
    return atomic_file_commit(&file);
}

/* Write profile.md: rank 0's profile, and the traced steps of all ranks. */
static fsdp_status write_table(const profile_run *p)
{
    atomic_file file = {0};
    TRY(atomic_file_open_in(&file, p->dir, "profile.md", HINT));
    profile_print_table(p->profile, file.out);
    if (p->n_traced > 0)
        print_steps(p, file.out);
    return atomic_file_commit(&file);
}

fsdp_status profile_run_write(profile_run *p, FILE *out)
{
    if (!p)
        return FSDP_OK;
    profile_run_pause(p);
    TRY(comm_agree(p->world, atomic_make_dir(p->dir, HINT)));
    const bool writes = comm_rank(p->world) == 0;
    TRY(comm_agree(p->world, write_own(p)));
    TRY(find_steps(p));
    TRY(comm_agree(p->world, writes ? write_table(p) : FSDP_OK));
    for (size_t i = 0; i < sizeof PICTURES / sizeof *PICTURES; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", p->dir, PICTURES[i]->file_name);
        if (p->n_traced > 0)
            TRY(write_picture(p, PICTURES[i]));
        else if (writes)
            (void)unlink(path); /* no step was traced: the picture is of an earlier run */
    }
    if (!writes)
        return FSDP_OK;
    fprintf(out, "profile: %s/profile.md", fsdp_printable(p->dir).text);
    if (p->n_traced > 0)
        fprintf(out, ", timeline.txt, timeline.svg, trace-rank-%s.json for ui.perfetto.dev",
                comm_size(p->world) > 1 ? "*" : "0");
    fprintf(out, "\n");
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

fsdp_status profile_run_open(const run_context *run, const char *dir, const char *caption,
                             order_check *order, profile_run **out)
{
    comm *world = run->world;
    profile_roof roof;
    double offset_s = 0, bound_s = 0;
    *out = NULL;
    TRY(comm_agree(world, atomic_make_dir(dir, HINT))); /* fail now, not after hours of training */
    TRY(ops_profile_roof(run->ops, device_compute_stream(run->dev), run->param_dtype == DTYPE_BF16,
                         &roof));
    ledger_reset_peaks(device_ledger(run->dev)); /* report the run's peaks, not these */
    ledger_reset_peaks(device_host_ledger(run->dev));
    if (comm_local_size(world) < comm_size(world)) /* ranks of one host share a clock */
        TRY(clock_offset_measure(world, &offset_s, &bound_s));
    profile_run *p = *out = calloc(1, sizeof *p);
    if (p)
        *p = (profile_run){.dir = dir,
                           .dev = run->dev,
                           .world = world,
                           .profile = profile_create(roof),
                           .traced = timeline_create(comm_rank(world), offset_s, bound_s),
                           .latest = timeline_create(comm_rank(world), offset_s, bound_s)};
    if (p)
        snprintf(p->caption, sizeof p->caption, "%s", caption);
    if (p && p->profile)
        p->watch = timeline_watch_create(run->dev, world, p->profile, order);
    if (!p || !p->profile || !p->watch || !p->traced || !p->latest)
        return fsdp_error(FSDP_ENOMEM, "", "profile: no host memory");
    return FSDP_OK;
}

void profile_run_close(profile_run *p)
{
    if (!p)
        return;
    comm_set_watch(p->world, NULL);
    device_set_watch(p->dev, NULL);
    profile_free(p->profile);
    timeline_watch_free(p->watch);
    timeline_free(p->traced);
    timeline_free(p->latest);
    free(p->ranks);
    free(p);
}
