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

#define DISAGREE "ranks disagree"
#define CIRCLE   "a circle of processes"
#define TWO      .least = 2, .most = 2

/* ---- ranks that do not fit each other -------------------------------------------------------- */

/* A case in which the ranks do fit each other. */
SIM_WELL(case_all_fit, .least = 2, .most = 4)
{
    sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    sim_must(lib->exchange(sim_me.next, 200000, sim_me.last, 200000) == 0, "messages");
    sim_must(lib->reduce_scatter(SIM_ELEMS) == 0, "reduce-scatter");
}

SIM_ENDS(case_count, "count", DISAGREE, .least = 2, .most = 4)
{
    sim_gather(sim_me.comm, (size_t)(SIM_ELEMS + sim_me.rank), lib->f32, sim_me.q);
}

SIM_ENDS(case_type, "type", DISAGREE, TWO)
{
    sim_gather(sim_me.comm, SIM_ELEMS, sim_me.rank > 0 ? lib->f32 : lib->i64, sim_me.q);
}

SIM_ENDS(case_call, "call", DISAGREE, .least = 2, .most = 3)
{
    if (sim_me.rank == 0)
        sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    else
        (void)lib->reduce_scatter(SIM_ELEMS);
}

SIM_ENDS(case_lengths, "lengths", DISAGREE, TWO)
{
    (void)lib->exchange(1, sim_me.rank == 0 ? 10 : 0, 0, sim_me.rank == 0 ? 0 : 20);
}

SIM_ENDS(case_sends_first, "sends_first", CIRCLE, TWO)
{
    (void)lib->exchange(sim_me.next, 10, sim_me.next, 0);
    (void)lib->exchange(sim_me.next, 0, sim_me.next, 10);
}

/* Rank 1 does not receive rank 0's last message. Rank 0 sends before it receives, so its message is
 * under way when rank 1's message has been received. */
SIM_ENDS(case_send_alone, "send_alone", "rank 1 ends its communicator, rank 0 is in send 2", TWO)
{
    (void)lib->exchange(sim_me.next, 20, sim_me.next, 20); /* connects */
    sim_must(lib->exchange(sim_me.next, 10, sim_me.next, sim_me.rank == 0 ? 10 : 0) == 0,
             "messages");
    if (sim_me.rank == 0)
        return;
    sim_finish();
    (void)lib->close(sim_me.comm);
}

SIM_ENDS(case_crossed, "crossed", CIRCLE, TWO)
{
    void *const comms[] = {sim_me.comm, sim_second()};
    sim_gather(comms[sim_me.rank], SIM_ELEMS, lib->f32, sim_me.q);
    sim_gather(comms[1 - sim_me.rank], SIM_ELEMS, lib->f32, sim_me.q2);
}

/* Rank 1 makes neither call, so rank 0's first call is still under way at its second. */
SIM_ENDS(case_unordered, "unordered", "two calls may run at once", TWO,
         .setting = "FSDP_SIM_NCCL=22500")
{
    void *other = sim_second();
    while (sim_me.rank == 1)
        pause();
    sim_gather(sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q);
    sim_gather(lib->orders_one_comm ? other : sim_me.comm, SIM_ELEMS, lib->f32, sim_me.q2);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Both ranks use one device, so none gets as far as this. */
static void case_never(void)
{
}

static void process(const sim_case *c, int rank, int n)
{
    sim_me = (sim_rank){.rank = rank, .n = n, .next = (rank + 1) % n, .last = (rank + n - 1) % n};
    lib->begin(c->run == case_never ? 0 : rank);
    sim_must(sim_join(0, n, rank, &sim_me.comm) == 0, "a communicator");
    c->run();
    sim_finish();
    sim_must(sim_me.comm == NULL || lib->close(sim_me.comm) == 0, "its end");
}

static void before(void)
{
    memset(sim_shared_by_ranks, 0, sizeof *sim_shared_by_ranks);
}

int sim_coll_run(const sim_coll *library)
{
    lib = library;
    sim_need(lib->device);
    sim_shared_by_ranks = mmap(NULL, sizeof *sim_shared_by_ranks, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sim_must(sim_shared_by_ranks != MAP_FAILED, "memory");
    sim_case_add(
        &(sim_case){ENDS("one_device", case_never, lib->shared_device), .least = 2, .most = 2});
    return sim_cases_run(process, before);
}
