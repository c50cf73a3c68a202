/* jury_lib.c -- see jury_lib.h. */
#include "tests/grade/jury_lib.h"
#include <stdio.h>
#include "common/base/philox.h"

static struct {
    int sockets[JURY_MOST_RANKS], n_ranks;
    uint64_t seed, task, n_drawn;
    wire asks[JURY_MOST_RANKS], answer;
} jury;

void jury_open(const int *sockets, int n_ranks, uint64_t seed)
{
    for (int r = 0; r < n_ranks; r++)
        jury.sockets[r] = sockets[r];
    jury.n_ranks = n_ranks;
    jury.seed = seed;
}

void jury_begin_task(int number)
{
    jury.task = (uint64_t)number;
    jury.n_drawn = 0;
}

fsdp_status jury_end_task(void)
{
    for (int r = 0; r < jury.n_ranks; r++) {
        jury_ask(r);
        TRY(jury_send(r));
    }
    return FSDP_OK;
}

int jury_ranks(void)
{
    return jury.n_ranks;
}

static uint64_t draw(void)
{
    uint32_t words[4];
    philox4x32_10(jury.seed, jury.task, jury.n_drawn++, words);
    return (uint64_t)words[0] << 32 | words[1];
}

size_t jury_below(size_t n)
{
    return (size_t)(draw() % n);
}

int jury_between(int low, int high)
{
    return low + (int)jury_below((size_t)(high - low + 1));
}

float jury_float(void)
{
    return (float)(draw() >> 40) * 0x1p-24f - 0.5f;
}

void jury_floats(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = jury_float();
}

wire *jury_ask(int rank)
{
    wire_begin(&jury.asks[rank]);
    return &jury.asks[rank];
}

/* The connection's error, with the rank. */
static fsdp_status of_rank(int rank, fsdp_status status)
{
    return status == FSDP_OK ? status
                             : fsdp_error(status, fsdp_error_get()->hint, "rank %d: %s", rank,
                                          fsdp_error_get()->what);
}

fsdp_status jury_send(int rank)
{
    return of_rank(rank, wire_send(&jury.asks[rank], jury.sockets[rank]));
}

fsdp_status jury_answer(int rank, wire **a)
{
    char text[sizeof fsdp_error_get()->what];
    *a = &jury.answer;
    TRY(of_rank(rank, wire_receive(*a, jury.sockets[rank])));
    const fsdp_status status = (fsdp_status)wire_get_below(*a, FSDP_HELP);
    if (status == FSDP_OK)
        return of_rank(rank, (*a)->is_torn ? wire_ended(*a) : FSDP_OK);
    wire_get_text(*a, text, sizeof text);
    return fsdp_error(status, "", "rank %d: %s", rank, text);
}

fsdp_status jury_call(int rank, wire **a)
{
    TRY(jury_send(rank));
    return jury_answer(rank, a);
}

fsdp_status jury_array(wire *a, const char *what, float *x, size_t n)
{
    const bool is_there = wire_get_below(a, 2);
    TRY(EXPECT(is_there, "", "%s: no memory, expected %zu elements", what, n));
    wire_get_floats(a, x, n);
    return FSDP_OK;
}
