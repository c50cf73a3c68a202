/* native_cases_lib.c -- see native_cases_lib.h. */
#include "tests/unit/native_cases_lib.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/target_lib.h"

static void case_name(comm_fixture *f)
{
    const char *name = comm_backend_name(f->c), *own = target_backend()->native->name;
    if (f->world > 1)
        CHECK(f, strcmp(name, own) == 0, "goes by %s", name);
}

void native_case_under(comm_fixture *f, const char *variable, const char *value,
                       void (*run)(comm_fixture *))
{
    comm_fixture own = *f;
    comm_config config = target_comm(0);
    config.backend = COMM_NATIVE;
    own.c = NULL;
    setenv(variable, value, 1);
    CHECK_OK(f, comm_open(f->dev, &config, &own.c));
    if (own.c != NULL)
        run(&own);
    CHECK(f, own.why[0] == '\0', "%s=%s: %.150s", variable, value, own.why);
    comm_close(own.c);
    unsetenv(variable);
}

static void below_link(comm_fixture *f)
{
    CHECK(f, (strstr(comm_backend_name(f->c), "+link") != NULL) == (f->world > 1), "goes by %s",
          comm_backend_name(f->c));
    comm_case_calls(f, COMM_OP_ALL_GATHER);
    comm_case_calls(f, COMM_OP_REDUCE_SCATTER);
    comm_case_calls(f, COMM_OP_ALL_REDUCE);
}

/* A simulated network issues each collective of the transport as a whole. */
static void case_link(comm_fixture *f)
{
    native_case_under(f, "FSDP_LINK", "10Gbit,1us", below_link);
}

/* Rounds of drawn calls on two streams, in groups of: all ranks; all ranks again; rank 0 alone, the
 * others; every other rank. All calls of a round are issued before the host waits. */
void native_case_drawn(comm_fixture *f)
{
    enum { GROUPS = 4, ROUNDS = 20, CALLS = 24, FEW = 50, MANY = 50000 };
    const int parity = f->rank % 2, n_others = f->rank == 0 ? 1 : f->world - 1;
    comm_fixture g[GROUPS] = {*f, *f, *f, *f};
    stream *s[2] = {f->s, NULL};
    uint64_t plan = 1;
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "other"}, &s[1]));
    CHECK_OK(f, comm_range(f->c, 0, 1, f->world, &g[1].c));
    CHECK_OK(f, comm_range(g[1].c, f->rank > 0, 1, n_others, &g[2].c));
    CHECK_OK(f, comm_range(f->c, parity, 2, (f->world + 1 - parity) / 2, &g[3].c));
    for (int i = 0; i < ROUNDS * CALLS && f->why[0] == '\0'; i++) {
        comm_fixture *in = &g[call_draw(&plan, GROUPS)];
        stream *on = s[call_draw(&plan, 2)];
        const comm_op op = (comm_op)call_draw(&plan, COMM_OPS);
        const bool adds = op == COMM_OP_REDUCE_SCATTER || op == COMM_OP_ALL_REDUCE;
        collective d = comm_test_of(op, adds ? DTYPE_F32 : DTYPE_U8,
                                    call_draw(&plan, call_draw(&plan, 4) == 0 ? MANY : FEW));
        d.other = call_draw(&plan, 2);
        comm_test_call(in, on, i, d);
        if (i % CALLS == CALLS - 1) {
            CHECK_OK(f, stream_sync(s[0]));
            CHECK_OK(f, stream_sync(s[1]));
        }
    }
    for (int i = GROUPS - 1; i > 0; i--)
        comm_close(g[i].c);
    stream_free(s[1]);
}

typedef struct told {
    int issued, ended;
    double seconds;
} told;

static uint64_t on_issued(void *self, const comm_record *r)
{
    return (uint64_t)++((told *)self)->issued;
}

static void on_ended(void *self, const comm_record *r)
{
    told *t = self;
    t->ended += (int)r->calls;
    t->seconds = r->seconds;
}

/* A watch is told the end of each collective by the time the host has waited for it. The byte
 * counts are the same as over any transport. */
static void case_watch(comm_fixture *f)
{
    enum { CALLS = 5, ELEMS = 100 };
    told t = {0};
    comm_stats before = comm_job_stats_read(f->c);
    comm_set_watch(f->c, &(comm_watch){.self = &t, .issued = on_issued, .ended = on_ended});
    for (int k = 0; k < CALLS; k++)
        comm_test_call(f, f->s, k, comm_test_of(COMM_OP_ALL_GATHER, DTYPE_U8, ELEMS));
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(f->c, NULL);
    comm_stats after = comm_job_stats_read(f->c);
    uint64_t sent = after.bytes_sent[COMM_OP_ALL_GATHER] - before.bytes_sent[COMM_OP_ALL_GATHER];
    CHECK(f, t.issued == CALLS && t.ended == CALLS, "%d issued, %d ended", t.issued, t.ended);
    CHECK(f, sent == (uint64_t)(f->world - 1) * CALLS * ELEMS, "%llu bytes sent",
          (unsigned long long)sent);
}

/* Rank 0 measures a call that rank 1 joins late, and looks for the end of the call even later. */
enum { LATE_US = 200000 };
static double time_of_late_call(comm_fixture *f)
{
    told t = {0};
    collective late = comm_test_of(COMM_OP_ALL_GATHER, DTYPE_U8, 200);
    CHECK_OK(f, comm_agree(f->c, FSDP_OK));
    comm_set_watch(f->c, &(comm_watch){.self = &t, .ended = on_ended});
    if (f->rank == 1)
        usleep(LATE_US);
    comm_test_call(f, f->s, 0, late);
    if (f->rank == 0)
        usleep(5 * LATE_US);
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(f->c, NULL);
    double seconds = 0;
    void *all = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "seconds", &t.seconds, sizeof t.seconds, &all));
    if (all != NULL)
        seconds = *(const double *)all;
    free(all);
    return seconds;
}

/* A call's time is measured on its stream, not on the host, which looks later. If the machine is
 * busy and rank 1 comes even later than that, the ranks try again. */
static void case_time(comm_fixture *f)
{
    enum { TRIES = 30 };
    bool judged = f->world == 2 && getenv("FSDP_SCHEDULE") == NULL;
    double seconds = time_of_late_call(f), most_s = 4.5 * LATE_US * 1e-6;
    for (int i = 1; judged && i < TRIES && seconds >= most_s && f->why[0] == '\0'; i++)
        seconds = time_of_late_call(f);
    if (judged && f->rank == 0)
        CHECK(f, seconds > 0.5 * LATE_US * 1e-6 && seconds < most_s, "%.3f seconds", seconds);
}

typedef struct seen {
    int launches;
    bool reduced;
} seen;

static uint64_t on_act(void *self, const device_act *act)
{
    seen *x = self;
    x->launches += act->kind == ACT_LAUNCH;
    x->reduced = x->reduced || (act->name != NULL && strcmp(act->name, "all-reduce") == 0);
    return 0;
}

/* Integers add exactly, so the library's own sum is used: one call, and no kernel of ours. */
static void case_one_call(comm_fixture *f)
{
    enum { ELEMS = 22 };
    seen x = {0};
    int64_t host[ELEMS] = {0};
    void *at = comm_test_up(f, host, sizeof host);
    CHECK_OK(f, stream_sync(f->s));
    device_set_watch(f->dev, &(device_watch){.self = &x, .issued = on_act});
    CHECK_OK(f, comm_all_reduce(f->c, f->s, "bins", DTYPE_I64, at, ELEMS));
    CHECK_OK(f, stream_sync(f->s));
    device_set_watch(f->dev, NULL);
    comm_test_down(f, host, at, sizeof host);
    if (f->world > 1)
        CHECK(f, x.launches == 1 && x.reduced, "%d launches", x.launches);
}

static atomic_int n_threads;

/* Replaces the C library's function, and calls it. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
    int (*own)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, __func__);
    atomic_fetch_add(&n_threads, 1);
    return own(thread, attr, main, arg);
}

/* A call starts no thread, neither in this program nor in the library. */
void native_case_one_thread(comm_fixture *f)
{
    enum { CALLS = 20, ELEMS = 100 };
    int before = 0;
    for (int k = -1; k < CALLS; k++) { /* the first call may connect the ranks */
        if (k == 0)
            before = atomic_load(&n_threads);
        comm_test_call(f, f->s, k, comm_test_of(COMM_OP_ALL_GATHER, DTYPE_U8, ELEMS));
    }
    CHECK_OK(f, stream_sync(f->s));
    CHECK(f, atomic_load(&n_threads) == before, "%d threads for %d calls",
          atomic_load(&n_threads) - before, CALLS);
}

int native_cases_run(const comm_case *cases, size_t n)
{
    static const comm_case SHARED[] = {{"name", case_name},
                                       {"link", case_link},
                                       {"drawn", native_case_drawn},
                                       {"watch", case_watch},
                                       {"time", case_time},
                                       {"one_call", case_one_call},
                                       {"one_thread", native_case_one_thread}};
    const device_config dc = {
        .backend = target_backend()->device, .n_threads = 1, .index = target_index()};
    comm_config cc = target_comm(0);
    comm_fixture f;
    cc.backend = COMM_NATIVE;
    if (cc.native == NULL || comm_test_open_as(&f, &dc, &cc) != FSDP_OK)
        return 1;
    comm_cases_run(&f, comm_cases, COMM_CASES, NULL);
    comm_cases_run(&f, SHARED, sizeof SHARED / sizeof *SHARED, NULL);
    comm_cases_run(&f, cases, n, NULL);
    return comm_test_close(&f);
}
