/* comm_cases_lib.c -- see comm_cases_lib.h. */
#include "tests/unit/comm_cases_lib.h"
#include "tests/unit/slices.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t sizes[] = {0, 1, 2, 3, 7, 10, 1000, 4099};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

fsdp_status comm_test_open_as(comm_fixture *f, const device_config *dc, const comm_config *cc)
{
    *f = (comm_fixture){.sums = cc->sums != NULL ? cc->sums : &comm_test_sums};
    fsdp_status status = device_open(dc, &f->dev);
    if (status == FSDP_OK)
        status = comm_open(f->dev, cc, &f->c);
    if (status == FSDP_OK)
        status = stream_create(f->dev, &(stream_config){.name = "comm"}, &f->worker);
    if (status != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return status;
    }
    f->s = f->worker;
    f->rank = comm_rank(f->c);
    f->world = comm_size(f->c);
    return FSDP_OK;
}

fsdp_status comm_test_open(comm_fixture *f, const device_backend *b, bool debug_fill)
{
    const device_config dc = {.backend = b, .n_threads = 1, .debug_fill = debug_fill};
    return comm_test_open_as(f, &dc, &(comm_config){.backend = COMM_AUTO});
}

void comm_test_end(comm_fixture *f)
{
    comm_close(f->c);
    stream_free(f->worker);
    device_close(f->dev);
}

int comm_test_close(comm_fixture *f)
{
    comm_test_end(f);
    printf("DONE rank %d/%d\n", f->rank, f->world);
    return f->n_failed > 0 ? 1 : 0;
}

void comm_test_run(comm_fixture *f, const char *name, void (*test)(comm_fixture *))
{
    const long long before = call_differences;
    f->why[0] = '\0';
    test(f);
    CHECK(f, call_differences == before, "%lld elements differ", call_differences - before);
    fsdp_status mine = f->why[0] == '\0' ? FSDP_OK : fsdp_error(FSDP_EINVAL, "", "%.190s", f->why);
    fsdp_status status = comm_agree(f->c, mine);
    const bool broken = status != FSDP_OK && status != FSDP_EINVAL;
    f->n_failed += status != FSDP_OK;
    if (status != FSDP_OK && (f->rank == 0 || broken))
        printf("FAIL %s: %s\n", name, fsdp_error_get()->what);
    else if (f->rank == 0)
        printf("PASS %s\n", name);
    fflush(stdout);
    if (broken) /* no later check could tell anything */
        comm_abort(f->c, 1);
}

/* ---- data ----------------------------------------------------------------------------------- */

void *comm_test_up(comm_fixture *f, void *host, size_t bytes)
{
    void *ptr = NULL;
    if (device_memory_is_host(f->dev))
        return host;
    CHECK_OK(f, device_alloc(f->s, MEM_OTHER, bytes, "test", &ptr));
    if (ptr != NULL)
        CHECK_OK(f, device_upload(f->s, ptr, host, bytes));
    CHECK_OK(f, stream_sync(f->s));
    return ptr;
}

void comm_test_down(comm_fixture *f, void *host, void *ptr, size_t bytes)
{
    if (ptr != host && ptr != NULL) {
        CHECK_OK(f, device_download(f->s, host, ptr, bytes));
        device_free(f->s, ptr);
    }
    CHECK_OK(f, stream_sync(f->s));
}

/* ---- collectives ---------------------------------------------------------------------------- */

static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8};

collective comm_test_of(comm_op op, dtype type, size_t elems)
{
    return (collective){.label = "test", .op = op, .type = type, .elems = elems, .steps = 1};
}

void comm_test_call(comm_fixture *f, stream *s, int i, collective d)
{
    static uint64_t mine;
    d.dev = f->dev;
    d.c = f->c;
    d.s = s;
    d.sums = f->sums;
    d.key = (uint64_t)i;
    d.mine = &mine;
    d.round = i;
    collective_run(&d);
}

/* Issues call number i of a check, and waits. */
static void call(comm_fixture *f, int i, collective d)
{
    comm_test_call(f, f->s, i, d);
    CHECK_OK(f, stream_sync(f->s));
}

void comm_case_calls(comm_fixture *f, comm_op op)
{
    for (int i = 0; i < N_SIZES * 4; i++) {
        collective d = comm_test_of(op, types[i / 2 % 4], sizes[i / 4]);
        d.other = i % 2;
        if (op == COMM_OP_REDUCE_SCATTER) {
            d.type = DTYPE_F32;
            d.mode = i / 2 % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST;
            d.sum_dtype = i / 8 % 2 ? DTYPE_BF16 : DTYPE_F32;
            d.steps = 1 + i / 4 % 3;
        } else if (op == COMM_OP_ALL_REDUCE) {
            d.type = i % 2 ? DTYPE_I64 : DTYPE_F32;
        }
        call(f, i, d);
    }
}

#define CASE(name, op)                                                                             \
    static void name(comm_fixture *f)                                                              \
    {                                                                                              \
        comm_case_calls(f, op);                                                                    \
    }
CASE(all_gather, COMM_OP_ALL_GATHER)
CASE(all_to_all, COMM_OP_ALL_TO_ALL)
CASE(reduce_scatter, COMM_OP_REDUCE_SCATTER)
CASE(all_reduce, COMM_OP_ALL_REDUCE)

/* ---- shards that are several pieces of an array --------------------------------------------- */

void comm_rows_make(int world, size_t row_elems, comm_rows *x)
{
    static const size_t ROWS[ROWS_MATRICES] = {5, 1, 12, 3};
    const size_t w = (size_t)world;
    size_t shard_elems = 1, n = 0; /* each shard ends with an element of padding */
    for (int m = 0; m < ROWS_MATRICES; m++)
        shard_elems += (ROWS[m] + w - 1) / w * row_elems;
    x->array_elems = 0;
    for (size_t r = 0; r < w; r++) {
        size_t at = r * shard_elems, begin = 0;
        for (int m = 0; m < ROWS_MATRICES; m++) {
            const size_t part = (ROWS[m] + w - 1) / w, left = ROWS[m] - min_size(r * part, ROWS[m]);
            x->list[n++] = (comm_piece){.at = at,
                                        .begin = begin + r * part * row_elems,
                                        .elems = min_size(part, left) * row_elems};
            at += part * row_elems;
            begin += ROWS[m] * row_elems + 1;
            x->array_elems = begin;
        }
    }
    x->pieces = (comm_pieces){x->list, n, shard_elems};
}

static void call_pieces(comm_fixture *f, int i, collective d, size_t row_elems)
{
    comm_rows x;
    comm_rows_make(f->world, row_elems, &x);
    d.elems = x.pieces.shard_elems;
    d.pieces = &x.pieces;
    d.array_elems = x.array_elems;
    call(f, i, d);
}

static void all_gather_pieces(comm_fixture *f)
{
    static const size_t ROW_ELEMS[] = {0, 1, 40, 1500};
    for (int i = 0; i < 16; i++)
        call_pieces(f, i, comm_test_of(COMM_OP_ALL_GATHER, types[i % 2], 0), ROW_ELEMS[i / 4]);
}

static void reduce_scatter_pieces(comm_fixture *f)
{
    static const size_t ROW_ELEMS[] = {1, 40, 1500};
    for (int i = 0; i < 12; i++) {
        collective d = comm_test_of(COMM_OP_REDUCE_SCATTER, DTYPE_F32, 0);
        d.mode = i % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST;
        d.sum_dtype = i % 4 == 3 ? DTYPE_BF16 : DTYPE_F32;
        d.steps = 3;
        call_pieces(f, i, d, ROW_ELEMS[i / 4]);
    }
}

/* ---- others --------------------------------------------------------------------------------- */

/* No rank leaves before the last has come. */
static void barrier(comm_fixture *f)
{
    usleep((useconds_t)(20000 * (f->world - 1 - f->rank)));
    double mine = clock_now_s();
    CHECK_OK(f, comm_barrier(f->c, f->s, "barrier"));
    CHECK_OK(f, stream_sync(f->s));
    double left = clock_now_s();
    void *all = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "times", &mine, sizeof mine, &all));
    const double *come = all;
    for (int r = 0; come != NULL && r < f->world; r++)
        CHECK(f, left >= come[r], "left %.6f s before rank %d came", come[r] - left, r);
    free(all);
}

static void grad_acc_empty(comm_fixture *f)
{
    for (int mode = 0; mode < 2; mode++) {
        grad_acc acc;
        float *there = NULL, sum[5] = {0};
        grad_acc_init(&acc, (grad_acc_mode)mode, f->sums, 5, MEM_GRADS_SHARD, "empty");
        CHECK_OK(f, grad_acc_finish(&acc, f->s, &there));
        memset(sum, 1, sizeof sum);
        if (there != NULL)
            comm_test_down(f, sum, there, sizeof sum);
        for (int i = 0; i < 5; i++)
            CHECK(f, sum[i] == 0, "element %d is %g", i, (double)sum[i]);
        /* free gives back a sum that is half done */
        float one[5] = {1, 2, 3, 4, 5};
        float *vec = comm_test_up(f, one, sizeof one);
        CHECK_OK(f, grad_acc_push(&acc, f->s, 0, vec));
        comm_test_down(f, one, vec, sizeof one);
        grad_acc_free(&acc, f->s);
        grad_acc zeroed = {0};
        grad_acc_free(&zeroed, f->s);
    }
}

const comm_case comm_cases[COMM_CASES] = {{"all_gather", all_gather},
                                          {"all_to_all", all_to_all},
                                          {"barrier", barrier},
                                          {"reduce_scatter", reduce_scatter},
                                          {"all_gather_pieces", all_gather_pieces},
                                          {"reduce_scatter_pieces", reduce_scatter_pieces},
                                          {"all_reduce", all_reduce},
                                          {"grad_acc_empty", grad_acc_empty}};

void comm_cases_run(comm_fixture *f, const comm_case *cases, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", cases[i].name, where != NULL ? "." : "",
                 where != NULL ? where : "");
        comm_test_run(f, name, cases[i].run);
    }
}
