/* native_cases_lib.c -- see native_cases_lib.h. */
#include "tests/unit/native_cases_lib.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/target_lib.h"

void native_case_name(comm_fixture *f)
{
    const char *name = comm_backend_name(f->c), *own = target_backend()->native->name;
    if (f->world > 1)
        CHECK(f, strcmp(name, own) == 0, "goes by %s", name);
}

/* Below a simulated network, which issues each collective of the transport as a whole. */
void native_case_link(comm_fixture *f)
{
    comm_fixture own = *f;
    comm_config config = target_comm(0);
    config.backend = COMM_NATIVE;
    own.c = NULL;
    setenv("FSDP_LINK", "10Gbit,1us", 1);
    CHECK_OK(f, comm_open(f->dev, &config, &own.c));
    unsetenv("FSDP_LINK");
    if (own.c == NULL)
        return;
    CHECK(f, (strstr(comm_backend_name(own.c), "+link") != NULL) == (f->world > 1), "goes by %s",
          comm_backend_name(own.c));
    comm_case_all_gather(&own);
    comm_case_broadcast(&own);
    comm_case_reduce_scatter(&own);
    comm_case_all_reduce(&own);
    CHECK(f, own.why[0] == '\0', "link: %.190s", own.why);
    comm_close(own.c);
}

/* Groups of every other rank, and of one rank. Calls run in each group and in the parent. */
void native_case_split(comm_fixture *f)
{
    comm_fixture half = *f, alone = *f;
    int parity = f->rank % 2;
    half.c = alone.c = NULL;
    CHECK_OK(f, comm_range(f->c, parity, 2, (f->world + 1 - parity) / 2, &half.c));
    CHECK_OK(f, comm_range(f->c, f->rank, 1, 1, &alone.c));
    if (f->why[0] != '\0')
        return;
    half.rank = comm_rank(half.c);
    half.world = comm_size(half.c);
    alone.rank = 0;
    alone.world = 1;
    CHECK(f, half.rank == f->rank / 2, "rank %d", half.rank);
    comm_case_all_gather(&half);
    comm_case_broadcast(&half);
    comm_case_all_gather(&alone);
    comm_case_all_gather(f);
    comm_case_all_to_all(&half);
    CHECK(f, half.why[0] == '\0', "half: %.190s", half.why);
    CHECK(f, alone.why[0] == '\0', "alone: %.190s", alone.why);
    comm_close(alone.c);
    comm_close(half.c);
}

/* Rank 0 stays alone, and the other ranks form a group. */
void native_case_split_uneven(comm_fixture *f)
{
    comm_fixture part = *f;
    part.c = NULL;
    CHECK_OK(f,
             comm_range(f->c, f->rank == 0 ? 0 : 1, 1, f->rank == 0 ? 1 : f->world - 1, &part.c));
    if (part.c == NULL)
        return;
    part.rank = comm_rank(part.c);
    part.world = comm_size(part.c);
    comm_case_all_gather(&part);
    CHECK(f, part.why[0] == '\0', "part: %.190s", part.why);
    comm_close(part.c);
}

enum { DRAWN = 24, MOST_BYTES = 200000 };

/* A call that all ranks draw alike. `at` is its buffer on the device, `host` the same on the
 * host. */
typedef struct drawn {
    int group, stream, op, root;
    size_t bytes; /* of each rank's part */
    unsigned char *host, *at;
} drawn;

static drawn draw(uint64_t *seed, int n_groups)
{
    uint64_t x[5];
    for (int i = 0; i < 5; i++)
        x[i] = *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (drawn){.group = (int)(x[0] >> 33) % n_groups,
                   .stream = (int)(x[1] >> 40) % 2,
                   .op = (int)(x[2] >> 40) % 3,
                   .root = (int)(x[3] >> 40),
                   .bytes = (x[4] >> 33) % ((x[4] >> 62) == 0 ? MOST_BYTES : 50)};
}

/* Byte j of what rank r sends in round k. */
static unsigned char coded_byte(int r, size_t j, int k)
{
    return (unsigned char)(j * 11 + (size_t)r * 37 + (size_t)k * 5 + (j >> 8));
}

static void coded_fill(void *buf, size_t bytes, int r, int k)
{
    for (size_t j = 0; j < bytes; j++)
        ((unsigned char *)buf)[j] = coded_byte(r, j, k);
}

static bool coded_same(const void *buf, size_t bytes, int r, int k)
{
    for (size_t j = 0; j < bytes; j++) {
        if (((const unsigned char *)buf)[j] != coded_byte(r, j, k))
            return false;
    }
    return true;
}

/* The buffer has the data to send, a part for each rank, then room for the data received. */
static void drawn_issue(comm_fixture *f, drawn *d, comm *c, stream *s, int k)
{
    int n = comm_size(c), me = comm_rank(c);
    size_t bytes = d->bytes * (size_t)n;
    d->host = comm_test_alloc(2 * bytes);
    for (int r = 0; r < n; r++)
        coded_fill(d->host + (size_t)r * d->bytes, d->bytes, d->op == 1 ? r : 0, k + me);
    d->at = comm_test_up(f, d->host, 2 * bytes);
    d->root %= n;
    if (d->op == 0)
        CHECK_OK(f, comm_all_gather(c, s, "drawn", DTYPE_U8, d->at, d->at + bytes, d->bytes));
    else if (d->op == 1)
        CHECK_OK(f, comm_all_to_all(c, s, "drawn", DTYPE_U8, d->at, d->at + bytes, d->bytes));
    else
        CHECK_OK(f, comm_broadcast(c, s, "drawn", DTYPE_U8, d->at, d->bytes, d->root));
}

static void drawn_check(comm_fixture *f, drawn *d, comm *c, int k)
{
    int n = comm_size(c), me = comm_rank(c);
    size_t bytes = d->bytes * (size_t)n;
    comm_test_down(f, d->host, d->at, 2 * bytes);
    for (int r = 0; r < n && d->op < 2; r++)
        CHECK(f,
              coded_same(d->host + bytes + (size_t)r * d->bytes, d->bytes, d->op == 1 ? me : 0,
                         k + r),
              "call %d, from %d of %d", k, r, n);
    if (d->op == 2)
        CHECK(f, coded_same(d->host, d->bytes, 0, k + d->root), "call %d, broadcast", k);
    free(d->host);
}

/* Rounds of calls in three groups on two streams. All calls of a round are issued before the first
 * is checked. */
void native_case_drawn(comm_fixture *f)
{
    comm *c[3] = {f->c, NULL, NULL};
    stream *s[2] = {f->s, NULL};
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "other"}, &s[1]));
    CHECK_OK(f, comm_range(f->c, 0, 1, f->world, &c[1]));
    CHECK_OK(f, comm_range(c[1], f->rank == 0 ? 0 : 1, 1, f->rank == 0 ? 1 : f->world - 1, &c[2]));
    for (uint64_t round = 1; round <= 20 && f->why[0] == '\0'; round++) {
        drawn d[DRAWN];
        uint64_t seed = round;
        for (int k = 0; k < DRAWN; k++) {
            d[k] = draw(&seed, 3);
            drawn_issue(f, &d[k], c[d[k].group], s[d[k].stream], 10 * k);
        }
        CHECK_OK(f, stream_sync(s[1]));
        for (int k = 0; k < DRAWN; k++)
            drawn_check(f, &d[k], c[d[k].group], 10 * k);
    }
    comm_close(c[2]);
    comm_close(c[1]);
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
void native_case_watch(comm_fixture *f)
{
    enum { CALLS = 5, ELEMS = 100 };
    told t = {0};
    comm_stats before = comm_job_stats_read(f->c);
    unsigned char *host = comm_test_alloc((size_t)f->world * ELEMS);
    unsigned char *at = comm_test_up(f, host, (size_t)f->world * ELEMS);
    comm_set_watch(f->c, &(comm_watch){.self = &t, .issued = on_issued, .ended = on_ended});
    for (int k = 0; k < CALLS; k++)
        CHECK_OK(f, comm_all_gather(f->c, f->s, "told", DTYPE_U8, at + f->rank * ELEMS, at, ELEMS));
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(f->c, NULL);
    comm_test_down(f, host, at, (size_t)f->world * ELEMS);
    comm_stats after = comm_job_stats_read(f->c);
    uint64_t sent = after.bytes_sent[COMM_OP_ALL_GATHER] - before.bytes_sent[COMM_OP_ALL_GATHER];
    CHECK(f, t.issued == CALLS && t.ended == CALLS, "%d issued, %d ended", t.issued, t.ended);
    CHECK(f, sent == (uint64_t)(f->world - 1) * CALLS * ELEMS, "%llu bytes sent",
          (unsigned long long)sent);
    free(host);
}

/* Rank 0 measures a call that rank 1 joins late, and looks for the end of the call even later. */
enum { LATE_US = 200000 };
static double time_of_late_call(comm_fixture *f)
{
    told t = {0};
    char *at = comm_test_up(f, f->why, sizeof f->why);
    CHECK_OK(f, comm_agree(f->c, FSDP_OK));
    comm_set_watch(f->c, &(comm_watch){.self = &t, .ended = on_ended});
    if (f->rank == 1)
        usleep(LATE_US);
    CHECK_OK(f, comm_broadcast(f->c, f->s, "late", DTYPE_U8, at, sizeof f->why, f->world - 1));
    if (f->rank == 0)
        usleep(5 * LATE_US);
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(f->c, NULL);
    comm_test_down(f, f->why, at, sizeof f->why);
    double *all, seconds = 0;
    void *new_all = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "seconds", &t.seconds, sizeof t.seconds, &new_all));
    all = new_all;
    if (all != NULL)
        seconds = all[0];
    free(all);
    return seconds;
}

/* A call's time is measured on its stream, not on the host, which looks later. If the machine is
 * busy and rank 1 comes even later than that, the ranks try again. */
void native_case_time(comm_fixture *f)
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
void native_case_one_call(comm_fixture *f)
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
    unsigned char *host = comm_test_alloc((size_t)f->world * ELEMS);
    unsigned char *at = comm_test_up(f, host, (size_t)f->world * ELEMS);
    int before = 0;
    for (int k = -1; k < CALLS; k++) { /* the first call may connect the ranks */
        if (k == 0)
            before = atomic_load(&n_threads);
        CHECK_OK(f,
                 comm_all_gather(f->c, f->s, "gather", DTYPE_U8, at + f->rank * ELEMS, at, ELEMS));
    }
    CHECK_OK(f, stream_sync(f->s));
    CHECK(f, atomic_load(&n_threads) == before, "%d threads for %d calls",
          atomic_load(&n_threads) - before, CALLS);
    comm_test_down(f, host, at, (size_t)f->world * ELEMS);
    free(host);
}

int native_cases_run(const native_case *cases, int n)
{
    const device_config dc = {
        .backend = target_backend()->device, .n_threads = 1, .index = target_index()};
    comm_config cc = target_comm(0);
    comm_fixture f;
    cc.backend = COMM_NATIVE;
    if (cc.native == NULL || comm_test_open_as(&f, &dc, &cc) != FSDP_OK)
        return 1;
    for (int i = 0; i < n; i++)
        comm_test_run(&f, cases[i].name, cases[i].run);
    return comm_test_close(&f);
}
