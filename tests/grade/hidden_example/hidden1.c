/* hidden1.c -- an example of hidden tests for lab 1. They use grade_lib.h and the lab's header.
 * They call no learner code except the functions under test. */
#include "lab1_flatparam/flat_param.h"
#include "tests/grade/grade_lib.h"

/* n is prime and shards are aligned to 8, so only the first shards are full. */
static fsdp_status primes(grade *g)
{
    static const size_t n[] = {7, 97, 1009};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        const size_t w = (size_t)g->world_size, rank = (size_t)g->rank;
        const size_t shard = (n[i] + 8 * w - 1) / (8 * w) * 8;
        const size_t begin = rank * shard < n[i] ? rank * shard : n[i];
        const size_t end = begin + shard < n[i] ? begin + shard : n[i];
        shard_span span = {0};
        TRY(shard_range(n[i], 8, g->world_size, g->rank, &span));
        TRY(expect_int("shard_elems", (long long)span.shard_elems, (long long)shard));
        TRY(expect_int("begin", (long long)span.begin, (long long)begin));
        TRY(expect_int("elems", (long long)span.elems, (long long)(end - begin)));
    }
    return FSDP_OK;
}

/* Three parameters of 5, 70 and 3 elements at multiples of 4, cut for this world size. */
static fsdp_status pieces_of_all(grade *g)
{
    flat_slot slots[] = {{.param = 4, .offset = 0, .elems = 5},
                         {.param = 2, .offset = 8, .elems = 70},
                         {.param = 7, .offset = 80, .elems = 3}};
    const size_t w = (size_t)g->world_size, shard = (84 + 4 * w - 1) / (4 * w) * 4;
    const flat_layout layout = {.world_size = g->world_size,
                                .n_slots = 3,
                                .slots = slots,
                                .used_elems = 84,
                                .shard_elems = shard,
                                .padded_elems = w * shard};
    size_t seen[3] = {0};
    for (int rank = 0; rank < g->world_size; rank++) {
        flat_piece pieces[3];
        int n = 0;
        TRY(flat_intersect(&layout, rank, pieces, &n));
        for (int i = 0; i < n; i++) {
            const flat_piece *p = &pieces[i];
            const size_t at = (size_t)rank * shard + p->shard_begin;
            TRY(expect_int("param_begin", (long long)p->param_begin, (long long)seen[p->slot]));
            TRY(expect_int("place", (long long)at,
                           (long long)(slots[p->slot].offset + p->param_begin)));
            seen[p->slot] += p->elems;
        }
    }
    for (int i = 0; i < 3; i++)
        TRY(expect_int("elements of a slot", (long long)seen[i], (long long)slots[i].elems));
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"1.91", primes}, {"1.x1", pieces_of_all}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
