/* sim_coll_lib.c -- see sim_coll_lib.h. */
#include "tests/unit/sim_coll_lib.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

sim_rank sim_me;
sim_shared *sim_shared_by_ranks;
static const sim_coll *lib;

/* ---- what the cases are made of -------------------------------------------------------------- */

int sim_join(int number, int n, int rank, void **out)
{
    sim_shared *shared = sim_shared_by_ranks;
    if (rank == 0) {
        sim_must(lib->make_id(shared->id[number]) == 0, "an id");
        atomic_store(&shared->has_id[number], 1);
    }
    while (atomic_load(&shared->has_id[number]) == 0)
        usleep(1000);
    return lib->join(shared->id[number], n, rank, out);
}

void sim_gather(void *comm, size_t elems, int type, void *q)
{
    sim_must(lib->gather(comm, elems, type, q) == 0, "all-gather");
}

void sim_finish(void)
{
    lib->await(sim_me.q);
    lib->await(sim_me.q2);
}

void *sim_second(void)
{
    void *other;
    sim_must(sim_join(1, sim_me.n, sim_me.rank, &other) == 0, "a second communicator");
    sim_gather(sim_me.comm, 1, lib->f32, sim_me.q);
    sim_gather(other, 1, lib->f32, sim_me.q);
    sim_finish();
    return other;
}

void sim_never(void)
{
}

/* ---- ranks that do not fit each other -------------------------------------------------------- */

/* A case in which the ranks do fit each other. */
static void case_all_fit(void)
{
    sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    sim_must(lib->exchange(sim_me.next, 200000, sim_me.last, 200000) == 0, "messages");
    sim_must(lib->broadcast(SIM_ELEMS, sim_me.n - 1) == 0, "broadcast");
    sim_must(lib->reduce_scatter(SIM_ELEMS) == 0, "reduce-scatter");
}

static void case_count(void)
{
    sim_gather(sim_me.comm, (size_t)(SIM_ELEMS + sim_me.rank), lib->f32, sim_me.q);
}

static void case_type(void)
{
    sim_gather(sim_me.comm, SIM_ELEMS, sim_me.rank > 0 ? lib->f32 : lib->i64, sim_me.q);
}

static void case_call(void)
{
    if (sim_me.rank == 0)
        sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    else
        (void)lib->reduce_scatter(SIM_ELEMS);
}

static void case_root(void)
{
    (void)lib->broadcast(SIM_ELEMS, sim_me.rank);
}

static void case_lengths(void)
{
    (void)lib->exchange(1, sim_me.rank == 0 ? 10 : 0, 0, sim_me.rank == 0 ? 0 : 20);
}

static void case_sends_first(void)
{
    (void)lib->exchange(sim_me.next, 10, sim_me.next, 0);
    (void)lib->exchange(sim_me.next, 0, sim_me.next, 10);
}

/* Rank 1 does not receive rank 0's last message. Rank 0 sends before it receives, so its message is
 * under way when rank 1's message has been received. */
static void case_send_alone(void)
{
    (void)lib->exchange(sim_me.next, 20, sim_me.next, 20); /* connects */
    sim_must(lib->exchange(sim_me.next, 10, sim_me.next, sim_me.rank == 0 ? 10 : 0) == 0,
             "messages");
    if (sim_me.rank == 0)
        return;
    sim_finish();
    (void)lib->close(sim_me.comm);
}

static void case_crossed(void)
{
    void *const comms[] = {sim_me.comm, sim_second()};
    sim_gather(comms[sim_me.rank], SIM_ELEMS, lib->f32, sim_me.q);
    sim_gather(comms[1 - sim_me.rank], SIM_ELEMS, lib->f32, sim_me.q2);
}

/* Rank 1 makes neither call, so rank 0's first call is still under way at its second. */
static void case_unordered(void)
{
    void *other = sim_second();
    while (sim_me.rank == 1)
        pause();
    sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    sim_gather(lib->orders_one_comm ? other : sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q2);
}

/* ---- all ------------------------------------------------------------------------------------- */

static const char DISAGREE[] = "ranks disagree", CIRCLE[] = "a circle of processes";
static const sim_case CASES[] = {
    {WELL(case_all_fit), .least = 2, .most = 4},
    {ENDS("count", case_count, DISAGREE), .least = 2, .most = 4},
    {ENDS("type", case_type, DISAGREE), .least = 2, .most = 2},
    {ENDS("call", case_call, DISAGREE), .least = 2, .most = 3},
    {ENDS("root", case_root, DISAGREE), .least = 2, .most = 3},
    {ENDS("lengths", case_lengths, DISAGREE), .least = 2, .most = 2},
    {ENDS("sends_first", case_sends_first, CIRCLE), .least = 2, .most = 2},
    {ENDS("send_alone", case_send_alone, "rank 1 ends its communicator, rank 0 is in send 2"),
     .least = 2, .most = 2},
    {ENDS("crossed", case_crossed, CIRCLE), .least = 2, .most = 2},
    {ENDS("unordered", case_unordered, "two calls may run at once"), .least = 2, .most = 2,
     .setting = "FSDP_SIM_NCCL=22500"},
};

static void process(const sim_case *c, int rank, int n)
{
    sim_me = (sim_rank){.rank = rank, .n = n, .next = (rank + 1) % n, .last = (rank + n - 1) % n};
    lib->begin(c->run == sim_never ? 0 : rank);
    sim_must(sim_join(0, n, rank, &sim_me.comm) == 0, "a communicator");
    c->run();
    sim_finish();
    sim_must(sim_me.comm == NULL || lib->close(sim_me.comm) == 0, "its end");
}

static void before(void)
{
    memset(sim_shared_by_ranks, 0, sizeof *sim_shared_by_ranks);
}

int sim_coll_run(const sim_coll *library, const sim_case *cases, size_t n_cases)
{
    lib = library;
    sim_need(lib->device);
    sim_shared_by_ranks = mmap(NULL, sizeof *sim_shared_by_ranks, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sim_must(sim_shared_by_ranks != MAP_FAILED, "memory");
    const int failed = sim_cases_run(CASES, sizeof CASES / sizeof *CASES, process, before);
    return sim_cases_run(cases, n_cases, process, before) | failed;
}
