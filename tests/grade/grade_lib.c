/* grade_lib.c -- the frame of a task test (run, agree, print the verdict), checks and gates. */
#include "tests/grade/grade_lib.h"
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "tests/grade/watchdog_lib.h"
#include "tests/unit/target_lib.h"

/* ---- checks -------------------------------------------------------------------------------- */
static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* NaN without a sign; printf would print "-nan". */
static double shown(float x)
{
    return isnan(x) ? (double)fabsf(x) : (double)x;
}

const char *grade_words(char *buf, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(buf, WHAT_BYTES, fmt, ap);
    va_end(ap);
    return buf;
}

fsdp_status expect_f32(const char *what, const float *got, const float *want, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        if (!same_bits(got[i], want[i]))
            return fsdp_error(FSDP_EINVAL, "", "%s[%zu]: got %.9g, expected %.9g", what, i,
                              shown(got[i]), shown(want[i]));
    return FSDP_OK;
}

fsdp_status expect_within(const char *what, size_t i, float got, double want, double tol)
{
    const double off = fabs((double)got - want);
    return EXPECT(off <= tol, "", "%s[%zu]: got %.9g, expected %.9g, off by %.3g, allowed %.3g",
                  what, i, (double)got, want, off, tol);
}

fsdp_status expect_close(const char *what, const float *got, const float *want, size_t elems,
                         double abs_tol, double rel_tol)
{
    for (size_t i = 0; i < elems; i++)
        TRY(expect_within(what, i, got[i], (double)want[i],
                          abs_tol + rel_tol * fabs((double)want[i])));
    return FSDP_OK;
}

fsdp_status expect_int(const char *what, long long got, long long want)
{
    return EXPECT(got == want, "", "%s: got %lld, expected %lld", what, got, want);
}

fsdp_status expect_size(const char *what, size_t got, size_t want)
{
    return EXPECT(got == want, "", "%s: got %zu, expected %zu", what, got, want);
}

/* "NULL", or where p points, relative to the start of the array. */
static const char *place_name(const void *p, const void *array, char *buf, size_t buf_bytes)
{
    snprintf(buf, buf_bytes, "NULL");
    if (p != NULL && array == NULL)
        snprintf(buf, buf_bytes, "an address");
    else if (p != NULL && (uintptr_t)p < (uintptr_t)array)
        snprintf(buf, buf_bytes, "an address before the array");
    else if (p != NULL)
        snprintf(buf, buf_bytes, "byte %td of the array", (const char *)p - (const char *)array);
    return buf;
}

fsdp_status expect_view(const char *what, const void *got, const void *array, size_t offset,
                        size_t elem_bytes)
{
    const char *want = array != NULL ? (const char *)array + offset * elem_bytes : NULL;
    char got_text[64], want_text[64];
    return EXPECT(got == want, "", "%s: got %s, expected %s (offset %zu of %zu bytes each)", what,
                  place_name(got, array, got_text, sizeof got_text),
                  place_name(want, array, want_text, sizeof want_text), offset, elem_bytes);
}

fsdp_status expect_state(const char *what, int got, int want)
{
    static const char *const names[] = {"SHARDED", "GATHERING", "GATHERED"}; /* unit_state */
    if (got < 0 || got >= 3)
        return expect_int(what, got, want);
    return EXPECT(got == want, "", "%s: got %s, expected %s", what, names[got], names[want]);
}

fsdp_status expect_text(const char *what, const char *got, const char *want)
{
    return EXPECT(strcmp(got, want) == 0, "", "%s: got \"%s\", expected \"%s\"", what, got, want);
}

fsdp_status expect_status(const char *what, fsdp_status got, fsdp_status want)
{
    if (got == FSDP_ETODO)
        return got;
    return EXPECT(got == want, "", "%s: got %s, expected %s", what, fsdp_status_name(got),
                  fsdp_status_name(want));
}

/* ---- memory ---------------------------------------------------------------------- */
fsdp_status grade_read(stream *s, const void *src, size_t bytes, void *host)
{
    TRY(grade_fetch(s, src, bytes, host));
    return stream_sync(s);
}

fsdp_status grade_fetch(stream *s, const void *src, size_t bytes, void *host)
{
    return device_download(s, host, src, bytes);
}

fsdp_status grade_write(stream *s, void *dst, const void *host, size_t bytes)
{
    return device_upload(s, dst, host, bytes);
}

/* On a device that cannot run C, fn gets a copy of the array in host memory. The array's address in
 * args is replaced by the address of the copy. */
static fsdp_status launch_on_copy(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                                  mem_access array)
{
    const void *words[16] = {0};
    void *copy;
    FSDP_ASSERT(args_bytes <= sizeof words);
    TRY(device_alloc_host(s, MEM_OTHER, array.bytes, "copy for the test's kernel", &copy));
    memcpy(words, args, args_bytes);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        words[i] = words[i] == array.ptr ? copy : words[i];
    fsdp_status status = device_copy(s, copy, array.ptr, array.bytes);
    if (status == FSDP_OK)
        status = grade_launch_idle(s, fn, words, args_bytes, "the test's kernel");
    if (status == FSDP_OK)
        status = device_copy(s, (void *)(uintptr_t)array.ptr, copy, array.bytes);
    device_free(s, copy);
    return status;
}

fsdp_status grade_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                         mem_access array)
{
    if (!device_runs_c(stream_device(s)) && array.bytes > 0)
        return launch_on_copy(s, fn, args, args_bytes, array);
    return stream_launch_work(s, &(launch_config){.fn = fn,
                                                  .args = args,
                                                  .args_bytes = args_bytes,
                                                  .on_host = array.bytes == 0,
                                                  .name = "the test's kernel",
                                                  .accesses = &array,
                                                  .n_accesses = array.bytes > 0});
}

typedef struct grade_add_args {
    float *x;
    size_t elems;
    float by[2];
} grade_add_args;

static fsdp_status add(void *args, int n_threads)
{
    const grade_add_args *a = args;
    for (size_t i = 0; i < a->elems; i++)
        a->x[i] += a->by[i % 2];
    return FSDP_OK;
}

fsdp_status grade_add(stream *s, float *x, size_t elems, float even, float odd)
{
    const grade_add_args args = {x, elems, {even, odd}};
    return grade_launch(s, add, &args, sizeof args, (mem_access){x, elems * sizeof *x, true});
}

fsdp_status grade_launch_idle(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                              const char *name)
{
    return stream_launch_work(s, &(launch_config){.fn = fn,
                                                  .args = args,
                                                  .args_bytes = args_bytes,
                                                  .on_host = true,
                                                  .work = {.key = {.name = name}},
                                                  .accesses = TOUCHES_NOTHING});
}

bool reaches(event *e, int limit_ms)
{
    for (int ms = 0; ms < limit_ms && !event_done(e); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    return event_done(e);
}

/* ---- the gate ------------------------------------------------------------------------------ */
enum { GATE_OPEN, GATE_CLOSED, GATE_EXPIRED, NAPS_PER_S = 5000 };

/* Count naps, not time, so that the gate waits longer on a busy machine. */
fsdp_status gate_hold(void *args, int n_threads)
{
    grade *g = *(grade **)args;
    const struct timespec nap = {.tv_nsec = 1000000000L / NAPS_PER_S};
    struct timespec before = {0}, now;
    long asleep = 0;
    for (long naps = 0; atomic_load(&g->gate) == GATE_CLOSED; naps++) {
        nanosleep(&nap, NULL);
        clock_gettime(g->gate_closer, &now);
        asleep = memcmp(&now, &before, sizeof now) == 0 ? asleep + 1 : 0;
        before = now;
        if (asleep > GATE_SLEEP_S * NAPS_PER_S || naps > GATE_LIMIT_S * NAPS_PER_S) {
            int closed = GATE_CLOSED;
            atomic_compare_exchange_strong(&g->gate, &closed, GATE_EXPIRED);
        }
    }
    return FSDP_OK;
}

void gate_arm(grade *g)
{
    FSDP_ASSERT_EQ(pthread_getcpuclockid(pthread_self(), &g->gate_closer), 0);
    atomic_store(&g->gate, GATE_CLOSED);
}

fsdp_status gate_close(grade *g, stream *s)
{
    gate_arm(g);
    return stream_launch_work(s, &(launch_config){.fn = gate_hold,
                                                  .args = &g,
                                                  .args_bytes = sizeof g,
                                                  .on_host = true,
                                                  .accesses = TOUCHES_NOTHING,
                                                  .waits_for = WAITS_FOR_HOST});
}

static fsdp_status gate_verdict(int state, const char *what)
{
    return EXPECT(state != GATE_EXPIRED, "let the stream wait for the event, not the host",
                  "%s: the host waited for the stream instead of running ahead", what);
}

fsdp_status gate_check(grade *g, const char *what)
{
    return gate_verdict(atomic_load(&g->gate), what);
}

fsdp_status gate_open(grade *g, const char *what)
{
    return gate_verdict(atomic_exchange(&g->gate, GATE_OPEN), what);
}

/* ---- one task ------------------------------------------------------------------------------ */
/* Where results go: standard output, or the grader's file (say_open). Each line in the file begins
 * with mark; the grader ignores lines without it. */
static struct {
    int fd;
    char mark[64];
} results = {.fd = STDOUT_FILENO};

/* say_open -- open the file that GRADE_RESULTS names and remove the variable, so that a learner's
 * code does not find the secret name in the environment. */
static bool say_open(void)
{
    char *path = getenv("GRADE_RESULTS");
    if (path == NULL)
        return true;
    const char *slash = strrchr(path, '/');
    results.fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    snprintf(results.mark, sizeof results.mark, "%s ", slash != NULL ? slash + 1 : path);
    if (results.fd < 0)
        perror("GRADE_RESULTS names no file to write results to");
    memset(path, 0, strlen(path));
    unsetenv("GRADE_RESULTS");
    return results.fd >= 0;
}

/* say -- print one line with one write(2), so that lines of several ranks do not mix. */
static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    char line[1600];
    size_t mark = strlen(results.mark);
    memcpy(line, results.mark, mark);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + mark, sizeof line - 1 - mark, fmt, ap);
    va_end(ap);
    size_t used = mark + (n < 0 ? 0 : (size_t)n);
    if (used > sizeof line - 2)
        used = sizeof line - 2;
    for (size_t i = 0; i < used; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[used++] = '\n';
    if (write(results.fd, line, used) < 0)
        return; /* nobody reads the results any more */
}

static void say_line(const char *line)
{
    say("%s", line);
}

bool grade_is_broken(fsdp_status st)
{
    return st == FSDP_ECOMM || st == FSDP_EMISMATCH || st == FSDP_ETIMEOUT;
}

/* say_todo -- not written: this task, or an earlier task that it calls ("task 1.3 is ..."). */
static void say_todo(const char *id)
{
    char missing[16] = "";
    if (sscanf(fsdp_error_get()->what, "task %15s", missing) == 1 && strcmp(missing, id) != 0)
        say("VERDICT %s BLOCKED needs %s", id, missing);
    else
        say("VERDICT %s TODO", id);
}

static void say_verdict(const grade *g, const char *id, fsdp_status mine, fsdp_status agreed)
{
    const char *what = fsdp_error_get()->what;
    if (g->rank != 0)
        return;
    if (agreed == FSDP_OK)
        say("VERDICT %s PASS", id);
    else if (agreed == FSDP_ETODO)
        say_todo(id);
    else if (agreed == FSDP_ESKIP)
        say("VERDICT %s SKIP %s", id, what);
    else if (mine != FSDP_OK)
        say("VERDICT %s FAIL rank 0: %s", id, what);
    else
        say("VERDICT %s FAIL %s", id, what);
}

fsdp_status grade_no_leak(device *dev)
{
    const ledger_figures f = ledger_read(device_ledger(dev));
    for (int c = 0; c < MEM_CATEGORIES; c++)
        TRY(EXPECT(f.live_bytes[c] == 0, "",
                   "device memory at the end of the task: %zu bytes of %s", f.live_bytes[c],
                   mem_category_name((mem_category)c)));
    return expect_int("device blocks still live at the end", (long long)f.live_blocks, 0);
}

/* run_task -- FSDP_OK, FSDP_ETODO or FSDP_ESKIP: the next task may run in this process. */
static fsdp_status run_task(grade *g, const grade_task *t)
{
    double begun_s = clock_now_s();
    watchdog_task(t->id);
    fsdp_status mine = t->run(g);
    fsdp_error_info why = *fsdp_error_get();
    (void)gate_open(g, "");
    fsdp_error_set(&why);
    if (mine == FSDP_OK)
        mine = stream_sync(g->compute);
    if (mine == FSDP_OK)
        mine = grade_no_leak(g->dev);
    if (mine != FSDP_ETODO && mine != FSDP_ESKIP && order_check_status(g->order) != FSDP_OK)
        mine = FSDP_EORDER; /* a race explains other failures, or was hidden by luck */
    if (mine != FSDP_OK && mine != FSDP_ETODO && mine != FSDP_ESKIP) {
        say("RANKFAIL %s %d %s %s", t->id, g->rank, fsdp_status_name(mine), fsdp_error_get()->what);
        if (*fsdp_error_get()->hint)
            say("RANKHINT %s %d %s", t->id, g->rank, fsdp_error_get()->hint);
    }
    fsdp_status agreed = grade_is_broken(mine) ? mine : comm_agree(g->comm, mine);
    say_verdict(g, t->id, mine, agreed);
    if (g->rank == 0)
        say("TIME %s %.1f", t->id, clock_now_s() - begun_s);
    say("DONE %s rank %d/%d", t->id, g->rank, g->world_size);
    watchdog_task(NULL);
    return agreed;
}

static const grade_task *find_task(const grade_task *tasks, int n_tasks, const char *id)
{
    for (int i = 0; i < n_tasks; i++)
        if (strcmp(tasks[i].id, id) == 0)
            return &tasks[i];
    return NULL;
}

fsdp_status grade_device_open(grade *g, const device_config *config, device **out)
{
    device_config c = *config;
    c.backend = target_backend()->device;
    c.index = target_index();
    if (c.async_compute && c.schedule_seed == 0) /* inline tests look where the host is */
        TRY(comm_schedule_seed(&c.schedule_seed));
    TRY(device_open(&c, out));
    const device_watch watch = order_check_watch(g->order);
    device_set_watch(*out, &watch);
    return FSDP_OK;
}

static fsdp_status grade_open(grade *g)
{
    device_config dc = {.n_threads = 1, .debug_fill = true, .async_compute = true};
    const char *limit = getenv("FSDP_TIMEOUT_S");
    comm_config cc = target_comm(limit ? atof(limit) : WATCHDOG_COMM_S);
    g->order = order_check_create();
    FSDP_ASSERT(g->order != NULL);
    TRY(grade_device_open(g, &dc, &g->dev));
    TRY(comm_open(g->dev, &cc, &g->comm));
    g->compute = device_compute_stream(g->dev);
    g->ops = target_ops();
    g->rank = comm_rank(g->comm);
    g->world_size = comm_size(g->comm);
    order_check_tell(g->order, g->rank, g->world_size); /* an assertion may end the task */
    watchdog_open(g->comm, say_line);
    return FSDP_OK;
}

/* usage_check -- every pair of arguments is "--task ID" with an ID of this program. */
static bool usage_check(int argc, char **argv, const grade_task *tasks, int n_tasks)
{
    bool good = argc > 1 && argc % 2 == 1;
    for (int i = 1; good && i + 1 < argc; i += 2)
        good = strcmp(argv[i], "--task") == 0 && find_task(tasks, n_tasks, argv[i + 1]);
    if (good)
        return true;
    fprintf(stderr, "usage: %s --task ID [--task ID ...]; tasks:", argv[0]);
    for (int i = 0; i < n_tasks; i++)
        fprintf(stderr, " %s", tasks[i].id);
    fprintf(stderr, "\n");
    return false;
}

/* abandon -- end the program after a failed task, without cleanup: memory, streams and collectives
 * may be in any state. The abort of one rank kills all, and their last output may be lost.
 * Therefore rank 0, which has the verdict, goes first, after a pause. A rank whose wait timed
 * out pauses longer, so that the rank it waited for can report where it is. */
static _Noreturn void abandon(grade *g, fsdp_status why)
{
    const time_t wait_s = (g->rank == 0 ? 0 : 2) + (why == FSDP_ETIMEOUT ? 5 : 0);
    const struct timespec pause = {.tv_sec = wait_s, .tv_nsec = 300 * 1000 * 1000};
    nanosleep(&pause, NULL);
    comm_abort(g->comm, 1);
}

int grade_main(int argc, char **argv, const grade_task *tasks, int n_tasks)
{
    if (!say_open() || !usage_check(argc, argv, tasks, n_tasks))
        return 2;
    grade *g = calloc(1, sizeof *g);
    FSDP_ASSERT(g != NULL);
    watchdog_signals();
    if (grade_open(g) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 2;
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        fsdp_status st = run_task(g, find_task(tasks, n_tasks, argv[i + 1]));
        if (st != FSDP_OK && st != FSDP_ETODO && st != FSDP_ESKIP)
            abandon(g, st);
    }
    watchdog_close();
    comm_close(g->comm);
    device_close(g->dev);
    order_check_free(g->order);
    free(g);
    return 0;
}
