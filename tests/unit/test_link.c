/* test_link.c -- the simulated network of FSDP_LINK: what it costs, who shares it, what is refused.
 *
 *   build/fsdp_run -n W build/tests/unit/test_link          (W = 1: alone)
 *
 * Rank 0 prints one PASS or FAIL line per check. Every call must take at least the model's time.
 * The time beyond that depends on the machine, which may be busy: the best of many calls must stay
 * below 1.15 times the model's time plus ALLOWANCE_S, for the call below and the wake-up. The times
 * are chosen so that a wrongly counted call never passes. */
#include "tests/unit/comm_cases_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double ALLOWANCE_S = 0.05;
enum { RATE_BYTES_S = 1000000, TRIES = 100, MAX_BYTES = 400000, MOST_RANKS = 64 }; /* RATE: 8Mbit */

static char sent[MAX_BYTES], got[MAX_BYTES];

/* ---- help ----------------------------------------------------------------------------------- */

/* Opens a group of all ranks over the link `text`; NULL: without a link. */
static fsdp_status open_with(comm_fixture *f, const char *text, comm **out)
{
    *out = NULL;
    if (text != NULL)
        setenv("FSDP_LINK", text, 1);
    fsdp_status status = comm_open(f->dev, &(comm_config){.backend = COMM_AUTO}, out);
    unsetenv("FSDP_LINK");
    return status;
}

/* The bytes that take this time at RATE_BYTES_S. */
static size_t bytes_of(double seconds)
{
    return (size_t)(seconds * RATE_BYTES_S + 0.5);
}

/* Returns the seconds from the first rank's begin to the last rank's end. */
static double span_s(comm_fixture *f, double begun_s, double ended_s)
{
    double mine[2] = {begun_s, ended_s}, first_s = INFINITY, last_s = 0, *all;
    void *new_all = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "span", mine, sizeof mine, &new_all));
    all = new_all;
    for (int r = 0; all != NULL && r < f->world; r++) {
        first_s = fmin(first_s, all[2 * r]);
        last_s = fmax(last_s, all[2 * r + 1]);
    }
    free(all);
    return last_s - first_s;
}

typedef enum kind { GATHER, SCATTER, ONE_TO_ALL } kind;

/* A call of `bytes` per slice on group c, or two calls at once, on c and `other`, each on its own
 * stream. NULL: this rank takes no part. */
typedef struct work {
    kind k;
    size_t bytes;
    comm *c, *other;
    stream *other_s;
} work;

/* Issues one of w's two calls. ONE_TO_ALL: the first rank sends a slice to each; in the group
 * `other`, the last. */
static void issue(comm_fixture *f, const work *w, comm *c, stream *s)
{
    const size_t bytes = w->bytes;
    const int one = c == w->other ? comm_size(c) - 1 : 0;
    size_t to[MOST_RANKS] = {0}, from[MOST_RANKS] = {0};
    from[one] = bytes;
    for (int r = 0; r < comm_size(c); r++)
        to[r] = comm_rank(c) == one ? bytes : 0;
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, &comm_test_sums, bytes / 4, MEM_GRADS_SHARD, "sum");
    if (w->k == GATHER)
        CHECK_OK(f, comm_all_gather(c, s, "gather", DTYPE_U8, sent, got, bytes));
    else if (w->k == SCATTER)
        CHECK_OK(f,
                 comm_reduce_scatter(c, s, "scatter", (float *)(void *)sent, bytes / 4, &acc, 0));
    else
        CHECK_OK(f, comm_all_to_allv(c, s, "one to all", DTYPE_U8, sent, to, got, from));
    grad_acc_free(&acc, s);
}

/* Times `w` repeatedly, until the best time is what the model says, at most TRIES times. */
static void timed(comm_fixture *f, const work *w, double model_s)
{
    static const char *const names[] = {"all-gather", "reduce-scatter", "one to all"};
    const char *text = w->other_s != NULL ? " in two groups at once" : "";
    double most_s = 1.15 * model_s + ALLOWANCE_S, best_s = INFINITY;
    for (int i = 0; i < TRIES && (i < 2 || best_s > most_s) && f->why[0] == '\0'; i++) {
        CHECK_OK(f, comm_agree(f->c, FSDP_OK));
        double begun_s = clock_now_s();
        if (w->c != NULL)
            issue(f, w, w->c, f->s);
        if (w->other != NULL)
            issue(f, w, w->other, w->other_s);
        CHECK_OK(f, stream_sync(f->s));
        if (w->other_s != NULL)
            CHECK_OK(f, stream_sync(w->other_s));
        best_s = fmin(best_s, span_s(f, begun_s, clock_now_s()));
        CHECK(f, best_s >= model_s, "%s%s took %.6f s, the model's time is %.6f", names[w->k], text,
              best_s, model_s);
    }
    CHECK(f, best_s <= most_s, "%s%s took %.6f s at best, the model's time is %.6f", names[w->k],
          text, best_s, model_s);
}

/* ---- one NIC a rank ------------------------------------------------------------------------- */

static void test_name(comm_fixture *f)
{
    comm *c;
    CHECK_OK(f, open_with(f, "1.5Gbit,50us", &c));
    if (c == NULL)
        return;
    char want[32];
    snprintf(want, sizeof want, "%s%s", comm_backend_name(f->c), f->world > 1 ? "+link" : "");
    CHECK(f, strcmp(comm_backend_name(c), want) == 0, "goes by %s", comm_backend_name(c));
    const comm_transport *below = f->c->data->table, *t = c->data->table;
    CHECK(f,
          t->shares == below->shares && t->peer_read == below->peer_read &&
              !t->reduce_scatter == !below->reduce_scatter && !t->all_gather == !below->all_gather,
          "does not offer what is below");
    comm_close(c);
}

static void test_bytes(comm_fixture *f)
{
    comm *c;
    CHECK_OK(f, open_with(f, "8Mbit,5ms", &c));
    if (c == NULL || f->world == 1) {
        comm_close(c);
        return;
    }
    double peers = f->world - 1;
    size_t slice = bytes_of(0.1 / peers) / 4 * 4;
    double model_s = 0.005 + peers * (double)slice / RATE_BYTES_S;
    timed(f, &(work){GATHER, slice, .c = c}, model_s);
    timed(f, &(work){SCATTER, slice, .c = c}, model_s);
    timed(f, &(work){ONE_TO_ALL, slice, .c = c}, model_s);
    comm_close(c);
}

/* Adds up what a watch is told of an all-reduce, in four parts: two phases, each a call below and
 * the time of the link. */
typedef struct told {
    double seconds, bytes;
    unsigned calls;
} told;

static void add_told(void *self, const comm_record *r)
{
    told *t = self;
    if (r->op != COMM_OP_ALL_REDUCE)
        return;
    t->seconds += r->seconds;
    t->bytes += r->bytes;
    t->calls += r->calls;
}

/* Every call has the latency once, whatever its size. An all-reduce is two calls. */
static void test_latency(comm_fixture *f)
{
    comm *c;
    told t = {0};
    int64_t sum = 1;
    CHECK_OK(f, open_with(f, "10Gbit,30ms", &c));
    if (c == NULL || f->world == 1) {
        comm_close(c);
        return;
    }
    timed(f, &(work){GATHER, 1, .c = c}, 0.03);
    comm_set_watch(c, &(comm_watch){.self = &t, .ended = add_told});
    CHECK_OK(f, comm_all_reduce(c, f->s, "sum", DTYPE_I64, &sum, 1));
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(c, NULL);
    CHECK(f, sum == f->world, "sum %lld", (long long)sum);
    CHECK(f, t.calls == 1 && t.seconds >= 0.06, "%u calls of %.6f s", t.calls, t.seconds);
    CHECK(f, fabs(t.bytes - 16. * (f->world - 1) / f->world) < 1e-9, "%g bytes", t.bytes);
    CHECK(f, !c->data->table->carries_host && transport_control(c->data) != c->data,
          "shapes calls of hosts");
    comm_close(c);
}

/* Ranks 0 and 1 are in two groups, each with its own stream. */
static void test_shared_by_groups(comm_fixture *f)
{
    comm *c, *one = NULL, *other = NULL;
    stream *s = NULL;
    CHECK_OK(f, open_with(f, "8Mbit,5ms", &c));
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "other"}, &s));
    if (c != NULL) {
        int first = f->rank / 2 * 2, n = f->world - first < 2 ? 1 : 2;
        CHECK_OK(f, comm_range(c, first, 1, n, &one));
        CHECK_OK(f, comm_range(c, first, 1, n, &other));
    }
    work gathers = {GATHER, bytes_of(0.08), .other_s = s}, opposite;
    if (f->rank < 2) {
        gathers.c = one;
        gathers.other = other;
    }
    opposite = gathers;
    opposite.k = ONE_TO_ALL;
    if (f->world > 1) {
        timed(f, &gathers, 0.165);
        timed(f, &opposite, 0.085); /* one in each direction */
    }
    comm_close(other);
    comm_close(one);
    comm_close(c);
    stream_free(s);
}

/* ---- one NIC a host ------------------------------------------------------------------------- */

/* Four ranks on two hosts. With two ranks per host, shm+mpi moves a slice of an all-gather or a
 * reduce-scatter once for both. */
static void test_hosts(comm_fixture *f)
{
    comm *c, *host = NULL, *across = NULL;
    if (f->world != 4)
        return;
    CHECK_OK(f, open_with(f, "8Mbit,5ms,2", &c));
    if (c == NULL)
        return;
    CHECK_OK(f, comm_range(c, f->rank / 2 * 2, 1, 2, &host));
    CHECK_OK(f, comm_range(c, f->rank % 2, 2, 2, &across));
    if (f->why[0] == '\0') {
        bool once = c->data->table->all_gather != NULL;
        double slices = once ? 2 : 4;
        timed(f, &(work){GATHER, bytes_of(0.05), .c = c}, 0.005 + slices * 0.05);
        timed(f, &(work){SCATTER, bytes_of(0.05), .c = c}, 0.005 + slices * 0.05);
        timed(f, &(work){ONE_TO_ALL, bytes_of(0.1), .c = c}, 0.005 + 2 * 0.1);
        timed(f, &(work){GATHER, bytes_of(0.06), .c = across}, 0.005 + 2 * 0.06);
        timed(f, &(work){GATHER, bytes_of(0.15), .c = host},
              0); /* no cost: over the link it would take 3 allowances */
    }
    comm_close(across);
    comm_close(host);
    comm_close(c);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void test_bad_values(comm_fixture *f)
{
    static const char *const bad[] = {"off",
                                      ",50us",
                                      "1Gbit",
                                      "1Gbit,",
                                      "0Gbit,50us",
                                      "-1Gbit,50us",
                                      " 1Gbit,50us",
                                      "1mbit,50us",
                                      "1Gbits,50us",
                                      "1,50us",
                                      "1e3Mbit,50us",
                                      "1.2.3Gbit,50us",
                                      "1Gbit,50",
                                      "1Gbit,-50us",
                                      "1Gbit,50us,",
                                      "1Gbit,50us,0",
                                      "1Gbit,50us,-1",
                                      "1Gbit,50us,1x",
                                      "1Gbit,50us,1,2",
                                      "1ms,50us",
                                      "1Gbit,50bit",
                                      "7bit,50us",
                                      "0.0000000000000000000000001Gbit,50us",
                                      "99999999999Gbit,50us",
                                      "1Gbit,1001s"};
    comm *c;
    fsdp_status status;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        status = open_with(f, bad[i], &c);
        const fsdp_error_info *e = fsdp_error_get();
        CHECK(f, status == FSDP_EINVAL && strstr(e->what, bad[i]) != NULL && *e->hint != '\0',
              "'%s': %s: %.100s", bad[i], fsdp_status_name(status), e->what);
        comm_close(c);
    }
    char text[40];
    snprintf(text, sizeof text, "1Gbit,50us,%d", f->world + 1);
    status = open_with(f, text, &c); /* a single rank has no network */
    CHECK(f, status == (f->world > 1 ? FSDP_EINVAL : FSDP_OK), "%s", text);
    comm_close(c);
    CHECK_OK(f, open_with(f, "", &c));
    CHECK(f, c != NULL && strcmp(comm_backend_name(c), comm_backend_name(f->c)) == 0, "empty");
    comm_close(c);
}

static void test_disagree(comm_fixture *f)
{
    comm *c;
    bool odd_one = f->rank == f->world - 1;
    char want[80];
    if (f->world == 1)
        return;
    for (int set = 0; set < 2; set++) {
        const char *others = set ? "1Gbit,60us" : "";
        fsdp_status status = open_with(f, odd_one ? "1Gbit,50us" : others, &c);
        snprintf(want, sizeof want, "FSDP_LINK differs: rank %d has '%s', rank 0 has '%s'",
                 f->world - 1, "1Gbit,50us", others);
        CHECK(f, status == FSDP_EMISMATCH, "%s", fsdp_status_name(status));
        CHECK(f, strstr(fsdp_error_get()->what, want) != NULL, "%.150s", fsdp_error_get()->what);
        comm_close(c);
    }
}

int main(void)
{
    comm_fixture f;
    unsetenv("FSDP_LINK");
    if (comm_test_open(&f, &device_cpu, false) != FSDP_OK)
        return 1;
    comm_test_run(&f, "link.name", test_name);
    comm_test_run(&f, "link.bytes", test_bytes);
    comm_test_run(&f, "link.latency", test_latency);
    comm_test_run(&f, "link.shared_by_groups", test_shared_by_groups);
    comm_test_run(&f, "link.hosts", test_hosts);
    comm_test_run(&f, "link.bad_values", test_bad_values);
    comm_test_run(&f, "link.disagree", test_disagree);
    return comm_test_close(&f);
}
