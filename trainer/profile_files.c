/* profile_files.c -- see profile_files.h.
 *
 * A timeline stays on its rank, which writes its trace and draws its lanes. The ranks tell each
 * other the figures of their steps, from which they know where a picture begins and ends. Rank 0
 * gets the lanes as text, and puts them together. */
#include "trainer/profile_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/atomic_file.h"
#include "common/observe/timeline_draw.h"

enum { PIECE_BYTES = 2048 }; /* of the lanes that hosts exchange at a time */

/* What all ranks know of one: its traced steps. */
typedef struct rank_steps {
    int n_steps, n_streams;
    timeline_step steps[TRACED_STEPS];
} rank_steps;

/* Of all ranks. */
typedef struct job_steps {
    int n_ranks, n_steps;
    const rank_steps *ranks; /* [n_ranks] */
} job_steps;

static fsdp_status file_open(const profile_files *f, const char *name, atomic_file *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return atomic_file_open(file, path, PROFILE_HINT);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The step that was under way when the timeline was full is not whole. */
static void find_steps(const timeline_view *v, rank_steps *out)
{
    timeline_step s = {0};
    memset(out, 0, sizeof *out); /* it is sent, gaps and all */
    out->n_streams = v->n_streams;
    while (out->n_steps < TRACED_STEPS && timeline_next_step(v, s.end, &s))
        out->steps[out->n_steps++] = s;
    if (v->n_lost > 0 && out->n_steps > 0)
        out->n_steps--;
}

static void print_steps(FILE *out, const job_steps *job)
{
    fprintf(out,
            "\n| %5s | %5s | %11s | %11s | %11s | %11s | %7s | %-32s |\n"
            "|------:|------:|------------:|------------:|------------:|------------:|--------:|"
            "----------------------------------|\n",
            "step", "rank", "wall ms", "compute ms", "comm ms", "exposed ms", "overlap",
            "longest stall");
    for (int i = 0; i < job->n_steps * job->n_ranks; i++) {
        const int r = i % job->n_ranks;
        const timeline_step *s = &job->ranks[r].steps[i / job->n_ranks];
        char stall[128] = "none";
        if (*s->stall.cause_name)
            snprintf(stall, sizeof stall, "%.3f ms, %s", 1e3 * s->stall.seconds,
                     s->stall.cause_name);
        fprintf(out, "| %5llu | %5d | %11.3f | %11.3f | %11.3f | %11.3f | %6.1f%% | %-32s |\n",
                (unsigned long long)s->step, r, 1e3 * (s->end_s - s->begin_s), 1e3 * s->compute_s,
                1e3 * s->comm_s, 1e3 * s->exposed_s, 100 * timeline_overlap(s), stall);
    }
}

/* ---- pictures -------------------------------------------------------------------------------- */

static draw_window window_of(const job_steps *job, int k)
{
    const timeline_step *first = &job->ranks[0].steps[k];
    draw_window w = {first->step, first->begin_s, first->end_s};
    for (int r = 1; r < job->n_ranks; r++) {
        w.begin_s = fmin(w.begin_s, job->ranks[r].steps[k].begin_s);
        w.end_s = fmax(w.end_s, job->ranks[r].steps[k].end_s);
    }
    return w;
}

/* Print the texts of the first n ranks to out, in the order of the ranks; out is NULL but on rank
 * 0. In pieces: every rank receives the pieces of all ranks. The last piece of a text is not full.
 */
static fsdp_status print_all(comm *world, const char *text, int n, FILE *out)
{
    size_t at = 0;
    for (int r = 0; r < n;) {
        char piece[PIECE_BYTES] = "";
        void *all;
        if (comm_rank(world) == r)
            snprintf(piece, sizeof piece, "%.*s", (int)sizeof piece - 1, text + at);
        TRY(comm_host_gather(world, "lanes", piece, sizeof piece, &all));
        const char *of_r = (const char *)all + (size_t)r * sizeof piece;
        const bool is_last = strlen(of_r) < sizeof piece - 1;
        if (out)
            fputs(of_r, out);
        free(all);
        at = is_last ? 0 : at + sizeof piece - 1;
        r += is_last;
    }
    return FSDP_OK;
}

static const draw_format *const PICTURES[] = {&draw_text, &draw_svg};

/* Those of the first n ranks that are drawn, and their streams. */
static draw_count count_drawn(const draw_format *p, const job_steps *job, int n)
{
    draw_count c = {0};
    for (; c.n_ranks < n && c.n_ranks < p->most_ranks; c.n_ranks++)
        c.n_streams += job->ranks[c.n_ranks].n_streams;
    return c;
}

/* The lanes of all ranks in a step. */
static fsdp_status put_lanes(const profile_files *f, const draw_format *p, const job_steps *job,
                             const draw_window *w, FILE *out)
{
    const timeline_view *v = &f->traced;
    char *text = NULL;
    size_t bytes = 0;
    FILE *mine = open_memstream(&text, &bytes);
    if (mine && v->rank < p->most_ranks)
        p->lanes(mine, w, v, count_drawn(p, job, v->rank));
    bool drawn = mine && fclose(mine) == 0;
    fsdp_status status = comm_agree(
        f->world,
        drawn ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "--profile: no memory for the pictures"));
    if (status == FSDP_OK)
        status = print_all(f->world, text, count_drawn(p, job, job->n_ranks).n_ranks, out);
    free(text);
    return status;
}

static fsdp_status write_picture(const profile_files *f, const draw_format *p, const job_steps *job)
{
    atomic_file file = {0};
    bool writes = f->traced.rank == 0;
    fsdp_status status = comm_agree(f->world, writes ? file_open(f, p->file_name, &file) : FSDP_OK);
    for (int k = p->last_step_only ? job->n_steps - 1 : 0; k < job->n_steps && status == FSDP_OK;
         k++) {
        draw_window w = window_of(job, k);
        if (writes)
            p->head(file.out, &w, count_drawn(p, job, job->n_ranks));
        status = put_lanes(f, p, job, &w, file.out);
        if (writes)
            p->foot(file.out, &w);
    }
    if (status != FSDP_OK) {
        atomic_file_cancel(&file);
        return status;
    }
    return comm_agree(f->world, writes ? atomic_file_commit(&file) : FSDP_OK);
}

/* ---- files ----------------------------------------------------------------------------------- */

static fsdp_status write_own(const profile_files *f)
{
    char name[64];
    atomic_file file = {0};
    snprintf(name, sizeof name, "profile-rank-%d.csv", f->traced.rank);
    TRY(file_open(f, name, &file));
    profile_print_csv(f->profile, file.out);
    TRY(atomic_file_commit(&file));
    snprintf(name, sizeof name, "trace-rank-%d.json", f->traced.rank);
    TRY(file_open(f, name, &file));
    timeline_write_chrome(&f->traced, &f->job, file.out);
    return atomic_file_commit(&file);
}

/* Rank 0's profile, and the traced steps of all ranks. */
static fsdp_status write_table(const profile_files *f, const job_steps *job)
{
    atomic_file file = {0};
    TRY(file_open(f, "profile.md", &file));
    profile_print_table(f->profile, file.out);
    if (job->n_steps > 0)
        print_steps(file.out, job);
    return atomic_file_commit(&file);
}

static fsdp_status write_shared(const profile_files *f, const job_steps *job, FILE *out)
{
    bool writes = f->traced.rank == 0;
    TRY(comm_agree(f->world, writes ? write_table(f, job) : FSDP_OK));
    for (size_t i = 0; i < sizeof PICTURES / sizeof *PICTURES; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", f->dir, PICTURES[i]->file_name);
        if (job->n_steps > 0)
            TRY(write_picture(f, PICTURES[i], job));
        else if (writes)
            (void)unlink(path); /* no step was traced: the picture is of an earlier run */
    }
    if (!writes)
        return FSDP_OK;
    fprintf(out, "profile: %s/profile.md", f->dir);
    if (job->n_steps > 0)
        fprintf(out, ", timeline.txt, timeline.svg, trace-rank-%s.json for ui.perfetto.dev",
                job->n_ranks > 1 ? "*" : "0");
    fprintf(out, "\n");
    return FSDP_OK;
}

fsdp_status profile_files_write(const profile_files *f, FILE *out)
{
    rank_steps mine;
    void *all;
    TRY(comm_agree(f->world, write_own(f)));
    find_steps(&f->traced, &mine);
    TRY(comm_host_gather(f->world, "traced steps", &mine, sizeof mine, &all));
    job_steps job = {comm_size(f->world), TRACED_STEPS, all}; /* the steps that all ranks have */
    for (int r = 0; r < job.n_ranks; r++)
        job.n_steps = job.ranks[r].n_steps < job.n_steps ? job.ranks[r].n_steps : job.n_steps;
    fsdp_status status = write_shared(f, &job, out);
    free(all);
    return status;
}
