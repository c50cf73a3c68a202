/* matrix.c -- all pairs of options, and some triples. A cell is one combination of options: it must
 * train like one device, to the bit, and hold and send what its plan says.
 *
 *   build/fsdp_run -n W build/tests/equivalence/matrix     all pairs, and matrix_table_lib.c's
 * triples
 *   ... --pairs             only pairs
 *   ... --seed N            draw other cells, schedules and models (default: 1)
 *   ... --fix AXIS=PATTERN  only these values of an axis; may be repeated
 *   ... --cell N            only this cell
 *
 * Rank 0 prints a line for every cell and every refused combination, figures, and "N passed, N
 * failed"; every rank ends with "DONE rank r/W". The trainers' output is discarded. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/comm/comm.h"
#include "common/comm/transport/transport_help.h"
#include "tests/equivalence/matrix_draw_lib.h"
#include "tests/equivalence/matrix_run_lib.h"
#include "tests/unit/target_lib.h"

enum { MOST_FIXES = 24, MOST_REFERENCES = 1024 };

typedef struct reference {
    char words[MATRIX_MOST_CHARS];
    fsdp_status status; /* of the run */
    matrix_result result;
} reference;

typedef struct matrix_suite {
    matrix m;
    matrix_place at;
    device *dev; /* opened on `world`, whose ranks agree on verdicts */
    comm *world;
    FILE *out;
    char folder[256];
    const char *fixes[MOST_FIXES];
    int n_fixes, only_cell, n_references;
    int passed, failed, refused;
    bool with_triples;
    uint64_t seed;
    reference *references[MOST_REFERENCES]; /* on rank 0 */
} matrix_suite;

/* ---- verdicts -------------------------------------------------------------------------------- */

/* Print and count a verdict; collective. True: all ranks passed. */
static bool report(matrix_suite *s, const char *what, const char *text, fsdp_status mine)
{
    const fsdp_status status = comm_agree(s->world, mine);
    s->passed += status == FSDP_OK;
    s->failed += status != FSDP_OK;
    if (comm_rank(s->world) == 0 && status == FSDP_OK)
        fprintf(s->out, "PASS W=%d %s: %s\n", s->at.world_size, what, text);
    else if (comm_rank(s->world) == 0)
        fprintf(s->out, "FAIL W=%d %s: %s\n", s->at.world_size, what, fsdp_error_get()->what);
    fflush(s->out);
    return status == FSDP_OK;
}

/* Print a command that does the same in a shell. */
static void print_command(const matrix_suite *s, const char *words, int n_ranks)
{
    char text[MATRIX_MOST_CHARS], *save;
    fprintf(s->out, "    ");
    for (int options = 0; options < 2; options++) {
        if (options && n_ranks > 1)
            fprintf(s->out, "%s -n %d ", s->at.no_mpi ? "build/fsdp_run" : "mpiexec.hydra",
                    n_ranks);
        if (options)
            fprintf(s->out, "build/fsdp_train ");
        snprintf(text, sizeof text, "%s", words);
        for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
            if (matrix_is_variable(w) != options)
                fprintf(s->out, "%s ", w);
    }
    fprintf(s->out, "\n");
    fflush(s->out);
}

/* This rank failed alone. Abort the job, because other ranks may wait for it. */
static void end_job(const matrix_suite *s, const char *what, const char *words)
{
    fprintf(s->out, "FAIL W=%d %s: rank %d alone: %s\n", s->at.world_size, what,
            comm_rank(s->world), fsdp_error_get()->what);
    print_command(s, words, s->at.world_size);
    comm_abort(s->world, 2);
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Write the words of a cell. flags: only words of axes that have one of these flags; -1: all
 * axes. */
static void words_of(const matrix_suite *s, int number, int flags, char *out, size_t chars)
{
    const matrix_cell *c = &s->m.cells[number];
    char marked[MATRIX_MOST_CHARS];
    int used = snprintf(marked, sizeof marked, "%s --device %s", MATRIX_BASE, s->at.device);
    for (int a = 0; a < s->m.n_axes; a++)
        if (flags < 0 || (MATRIX_AXES[a].flags & flags))
            used += snprintf(marked + used, sizeof marked - (size_t)used, " %s",
                             s->m.words[c->value[a]]);
    FSDP_ASSERT(used < (int)sizeof marked);
    matrix_write(marked, &s->at, (int)s->seed * 10000 + number, s->folder, out, (int)chars);
}

/* *out: what one device computes with the cell's recipe. Cells with the same recipe share the
 * result. */
static fsdp_status reference_of(matrix_suite *s, int number, const reference **out)
{
    char words[MATRIX_MOST_CHARS], csv[320], all[MATRIX_MOST_CHARS];
    long long sequences;
    words_of(s, number, -1, all, sizeof all);
    TRY(matrix_global_batch(all, s->at.world_size, &sequences));
    const int more = strstr(all, "--ops fast") ? MATRIX_FAST_RECIPE : 0;
    words_of(s, number, MATRIX_RECIPE | more, words, sizeof words);
    const size_t used = strlen(words);
    snprintf(words + used, sizeof words - used, " --parallel single --global-batch %lld",
             sequences);
    for (int i = 0; i < s->n_references; i++) {
        *out = s->references[i];
        if (strcmp((*out)->words, words) == 0)
            return (*out)->status == FSDP_OK
                       ? FSDP_OK
                       : fsdp_error((*out)->status, "", "one device has failed, see above");
    }
    reference *r = calloc(1, sizeof *r);
    FSDP_ASSERT(r != NULL && s->n_references < MOST_REFERENCES);
    s->references[s->n_references++] = r;
    memcpy(r->words, words, sizeof words);
    *out = r;
    snprintf(csv, sizeof csv, "%s/single.csv", s->folder);
    matrix_job j = {.words = words, .loss_csv = csv, .alone = true, .keep = &r->result};
    r->status = matrix_run(&j);
    if (r->status == FSDP_OK && *j.differs)
        r->status = fsdp_error(FSDP_EINVAL, "", "one device: %s", j.differs);
    return r->status;
}

static void run_cell(matrix_suite *s, int number)
{
    char words[MATRIX_MOST_CHARS], csv[320], what[48];
    const reference *single = NULL;
    words_of(s, number, -1, words, sizeof words);
    snprintf(what, sizeof what, "cell %d", number);
    snprintf(csv, sizeof csv, "%s/%d.csv", s->folder, number);
    const bool has_bits = strstr(words, "--reduction canonical") != NULL;
    fsdp_status status = FSDP_OK;
    if (has_bits && comm_rank(s->world) == 0)
        status = reference_of(s, number, &single);
    status = comm_agree(s->world, status);
    matrix_job j = {.words = words, .loss_csv = csv, .want = single ? &single->result : NULL};
    if (status == FSDP_OK) {
        status = matrix_run(&j);
        if (status != FSDP_OK && !j.failed_alike)
            end_job(s, what, words);
        s->m.cells[number].was_run = true;
        if (status != FSDP_OK && single)
            matrix_diverged(&single->result);
    }
    if (status == FSDP_OK && *j.differs)
        status = fsdp_error(FSDP_EINVAL, "", "rank %d, %s", comm_rank(s->world), j.differs);
    if (report(s, what, words + strlen(MATRIX_BASE) + 1, status) || comm_rank(s->world) != 0)
        return;
    print_command(s, words, s->at.world_size);
    if (single)
        print_command(s, single->words, 1);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void run_refused(matrix_suite *s, const matrix_refusal *r, const char *a, const char *b)
{
    char marked[MATRIX_MOST_CHARS], words[MATRIX_MOST_CHARS], csv[320];
    snprintf(marked, sizeof marked, "%s --reduction canonical --device %s %s %s", MATRIX_BASE,
             s->at.device, a, b);
    matrix_write(marked, &s->at, 0, s->folder, words, (int)sizeof words);
    snprintf(csv, sizeof csv, "%s/refused.csv", s->folder);
    matrix_job j = {.words = words, .loss_csv = csv};
    const fsdp_status got = matrix_run(&j);
    const fsdp_error_info *e = fsdp_error_get();
    fsdp_status status = FSDP_OK;
    if (got != FSDP_OK && !j.failed_alike)
        end_job(s, "refused", words);
    if (got == FSDP_OK)
        status = fsdp_error(FSDP_EINVAL, "", "it is not refused, expected \"%s\"", r->says);
    else if (!strstr(e->hint, r->says) && !strstr(e->what, r->says))
        status =
            fsdp_error(FSDP_EINVAL, "", "expected a HINT with \"%s\", got: %.200s HINT: %.200s",
                       r->says, e->what, e->hint);
    s->refused++;
    if (!report(s, "refused", words + strlen(MATRIX_BASE) + 1, status) && comm_rank(s->world) == 0)
        print_command(s, words, s->at.world_size);
}

/* The next value after *i that matches the pattern; start with *i = -1. A pattern that matches no
 * value stands for itself, once. */
static const char *next_meant(const matrix *m, const char *pattern, int *i)
{
    bool is_value = false;
    for (int k = 0; k < m->n_values; k++)
        is_value = is_value || matrix_means(m, pattern, k);
    if (!is_value)
        return (*i)++ < 0 ? pattern : NULL;
    while (++*i < m->n_values)
        if (matrix_means(m, pattern, *i))
            return m->words[*i];
    return NULL;
}

static void run_refusals(matrix_suite *s)
{
    for (const matrix_refusal *r = MATRIX_REFUSALS; r->a; r++) {
        if (!r->says || !matrix_is_refused_at(r, &s->at))
            continue;
        const char *a, *b;
        for (int i = -1; (a = next_meant(&s->m, r->a, &i));)
            for (int j = -1; (b = r->b ? next_meant(&s->m, r->b, &j) : j++ < 0 ? "" : NULL);)
                run_refused(s, r, a, b);
    }
}

/* ---- the suite ------------------------------------------------------------------------------- */

static bool read_options(matrix_suite *s, int argc, char **argv)
{
    static const struct option options[] = {{"pairs", no_argument, NULL, 'p'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"fix", required_argument, NULL, 'f'},
                                            {"cell", required_argument, NULL, 'c'},
                                            {0}};
    *s = (matrix_suite){.with_triples = true, .seed = 1, .only_cell = -1};
    s->fixes[s->n_fixes++] = "reduction=*canonical";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?' || s->n_fixes == MOST_FIXES)
            return false;
        if (c == 'p')
            s->with_triples = false;
        else if (c == 's')
            s->seed = strtoull(optarg, NULL, 10);
        else if (c == 'c')
            s->only_cell = atoi(optarg);
        else
            s->fixes[s->n_fixes++] = optarg;
    }
    return optind == argc;
}

/* Make a folder on rank 0, and tell all ranks its name. */
static fsdp_status make_folder(matrix_suite *s)
{
    const char *in = getenv("TMPDIR");
    void *all;
    snprintf(s->folder, sizeof s->folder, "%s/fsdp-matrix-XXXXXX", in ? in : "/tmp");
    fsdp_status status = FSDP_OK;
    if (comm_rank(s->world) == 0 && !mkdtemp(s->folder))
        status = fsdp_error(FSDP_EIO, "set TMPDIR", "cannot make %s", s->folder);
    TRY(comm_agree(s->world, status));
    TRY(comm_host_gather(s->world, "folder", s->folder, sizeof s->folder, &all));
    memcpy(s->folder, all, sizeof s->folder);
    free(all);
    return FSDP_OK;
}

/* Open and close FSDP_DEVICE. The streams of a stand-in keep the order that FSDP_SCHEDULE asked for
 * when the process first opened it. Therefore the device is first opened here, on all ranks, and
 * not by a cell. */
static fsdp_status open_target(uint64_t seed)
{
    const device_config config = {
        .backend = target_backend()->device, .n_threads = 1, .index = target_index()};
    char text[24];
    device *dev;
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    if (seed % 2 == 0)
        setenv("FSDP_SCHEDULE", text, 1);
    const fsdp_status status = device_open(&config, &dev);
    unsetenv("FSDP_SCHEDULE");
    if (status == FSDP_OK)
        device_close(dev);
    return status;
}

static fsdp_status open_suite(matrix_suite *s)
{
    const backend *b = target_backend(); /* of FSDP_DEVICE */
    const char *name = getenv("FSDP_DEVICE");
    comm_run_start start;
    TRY(open_target(s->seed));
    TRY(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &s->dev));
#ifdef FSDP_HAVE_MPI
    const bool has_mpi = !comm_run_started(&start);
#else
    const bool has_mpi = false;
#endif
    /* A process can start MPI only once. Start it before the cells, which on one rank need it. */
    const bool is_alone = comm_launched_ranks() == 1;
    const comm_config cc = {.backend = has_mpi && is_alone ? COMM_MPI : COMM_AUTO};
    TRY(comm_open(s->dev, &cc, &s->world));
    s->at = (matrix_place){.world_size = comm_size(s->world),
                           .device = name ? name : "cpu",
                           .has_portable = b->portable != NULL,
                           .no_mpi = !has_mpi};
    TRY(make_folder(s));
    TRY(matrix_open(&s->m, &s->at));
    for (int i = 0; i < s->n_fixes; i++)
        TRY(matrix_fix(&s->m, s->fixes[i]));
    return matrix_draw(&s->m, s->seed, s->with_triples);
}

static void close_suite(matrix_suite *s)
{
    char command[sizeof s->folder + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", s->folder);
    if (comm_rank(s->world) == 0 && system(command) != 0)
        fprintf(s->out, "cannot remove %s\n", s->folder);
    for (int i = 0; i < s->n_references; i++) {
        matrix_result_free(&s->references[i]->result);
        free(s->references[i]);
    }
    matrix_close(&s->m);
    comm_close(s->world);
    device_close(s->dev);
}

/* Run the cells, then check that every pair and triple that is not refused was in a cell. */
static void run_suite(matrix_suite *s)
{
    const double begun = clock_now_s();
    for (int c = 0; c < s->m.n_cells; c++)
        if (s->only_cell < 0 || s->only_cell == c)
            run_cell(s, c);
    if (s->only_cell >= 0)
        return;
    if (matrix_is_in(&s->m, 0)) /* combinations are refused in canonical mode */
        run_refusals(s);
    const matrix_coverage n = matrix_count(&s->m, s->with_triples);
    char text[160];
    snprintf(text, sizeof text,
             "%d cells have %d pairs and %d triples; %d combinations refused; %.0f s", s->m.n_cells,
             n.pairs, n.triples, s->refused, clock_now_s() - begun);
    report(s, "coverage", text,
           n.missing == 0
               ? FSDP_OK
               : fsdp_error(FSDP_EINVAL, "", "%d pairs and triples are in no cell, first %s",
                            n.missing, n.first));
}

int main(int argc, char **argv)
{
    static matrix_suite s;
    if (!read_options(&s, argc, argv))
        return 2;
    /* If a cell pinned its rank to a core, the next cell would run pinned too. */
    setenv("FSDP_PIN", "0", 1);
    s.out = fdopen(dup(STDOUT_FILENO), "w");
    if (!s.out || !freopen("/dev/null", "w", stdout))
        return 2;
    if (open_suite(&s) != FSDP_OK) {
        fsdp_error_print(stderr, s.world ? comm_rank(s.world) : 0, s.at.world_size);
        return 2;
    }
    run_suite(&s);
    if (comm_rank(s.world) == 0)
        fprintf(s.out, "%d passed, %d failed\n", s.passed, s.failed);
    fprintf(s.out, "DONE rank %d/%d\n", comm_rank(s.world), s.at.world_size);
    fflush(s.out);
    const int failed = s.failed;
    close_suite(&s);
    return failed > 0 ? 1 : 0;
}
