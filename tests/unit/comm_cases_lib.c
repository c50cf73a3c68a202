/* comm_cases_lib.c -- see comm_cases_lib.h. */
#include "tests/unit/slices.h"
#include "tests/unit/comm_cases_lib.h"
#include <math.h>
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
    f->why[0] = '\0';
    test(f);
    fsdp_status mine = f->why[0] == '\0' ? FSDP_OK : fsdp_error(FSDP_EINVAL, "", "%.150s", f->why);
    bool passed = comm_agree(f->c, mine) == FSDP_OK;
    f->n_failed += !passed;
    if (f->rank == 0)
        printf("%s %s%s%s\n", passed ? "PASS" : "FAIL", name, passed ? "" : ": ",
               passed ? "" : fsdp_error_get()->what);
}

/* ---- a table of kernels for sums ----------------------------------------------------------- */

static fsdp_status add_run(void *args, int n_threads)
{
    const add_args *a = args;
    bool rounds = a->round_to == DTYPE_BF16;
    (void)n_threads;
    for (size_t i = 0; i < a->elems; i++) {
        float x = rounds ? bf16_round(a->a[i]) : a->a[i];
        if (a->b != NULL)
            x += rounds ? bf16_round(a->b[i]) : a->b[i];
        a->out[i] = rounds ? bf16_round(x) : x;
    }
    return FSDP_OK;
}

static fsdp_status add_issue(stream *s, const add_args *a)
{
    return stream_launch(s, add_run, a, sizeof *a);
}

static fsdp_status round_run(void *args, int n_threads)
{
    const cast_args *a = args;
    (void)n_threads;
    for (size_t i = 0; i < a->elems; i++)
        ((uint16_t *)a->out)[i] = bf16_from_f32(((const float *)a->in)[i]);
    return FSDP_OK;
}

static fsdp_status round_issue(stream *s, const cast_args *a)
{
    return stream_launch(s, round_run, a, sizeof *a);
}

const sum_kernels comm_test_sums = {
    .add = add_issue, .cast = round_issue, .launch = sum_launch_cpu};

/* ---- data ---------------------------------------------------------------------------------- */

void *comm_test_alloc(size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (p == NULL)
        abort();
    return p;
}

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

/* Byte j of what rank r sends in round k. */
unsigned char comm_test_coded_byte(int r, size_t j, int k)
{
    return (unsigned char)(j * 11 + (size_t)r * 37 + (size_t)k * 5 + (j >> 8));
}

void comm_test_coded_fill(void *buf, size_t bytes, int r, int k)
{
    for (size_t j = 0; j < bytes; j++)
        ((unsigned char *)buf)[j] = comm_test_coded_byte(r, j, k);
}

bool comm_test_coded_same(const void *buf, size_t bytes, int r, int k)
{
    for (size_t j = 0; j < bytes; j++) {
        if (((const unsigned char *)buf)[j] != comm_test_coded_byte(r, j, k))
            return false;
    }
    return true;
}

/* Floats whose sum depends on the order: magnitudes over 2^-12 ... 2^12. */
static float rough(int r, size_t i, int k)
{
    uint32_t h = (uint32_t)(r * 7919 + k * 104729) + (uint32_t)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    float unit = (float)(h & 0xffffu) / 65536.0f - 0.4f;
    return unit * (float)(1u << (h >> 28)) * (float)(1u << (h >> 28 & 7)) / 4096.0f;
}

/* The definition of tree_sum.h, by recursion over leaves i*2^k ... of n. */
static float tree_of(const float *leaves, size_t n, size_t i, int k)
{
    if (k == 0)
        return leaves[i];
    float left = tree_of(leaves, n, 2 * i, k - 1);
    size_t right_first = (2 * i + 1) << (k - 1);
    return right_first < n ? left + tree_of(leaves, n, 2 * i + 1, k - 1) : left;
}

static float tree_expected(const float *leaves, size_t n)
{
    int k = 0;
    while (((size_t)1 << k) < n)
        k++;
    return tree_of(leaves, n, 0, k);
}

/* ---- moving bytes -------------------------------------------------------------------------- */

static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8};

static void all_gather_once(comm_fixture *f, dtype t, size_t elems, bool in_place)
{
    size_t bytes = elems * dtype_bytes(t);
    char *recv = comm_test_alloc(bytes * (size_t)f->world);
    char *send = in_place ? recv + bytes * (size_t)f->rank : comm_test_alloc(bytes);
    memset(recv, 0xAA, bytes * (size_t)f->world);
    comm_test_coded_fill(send, bytes, f->rank, 1);
    char *to = comm_test_up(f, recv, bytes * (size_t)f->world);
    char *from = in_place ? to + bytes * (size_t)f->rank : comm_test_up(f, send, bytes);
    CHECK_OK(f, comm_all_gather(f->c, f->s, "gather", t, from, to, elems));
    comm_test_down(f, recv, to, bytes * (size_t)f->world);
    if (!in_place)
        comm_test_down(f, send, from, bytes);
    for (int r = 0; r < f->world; r++)
        CHECK(f, comm_test_coded_same(recv + bytes * (size_t)r, bytes, r, 1),
              "%s of %zu: slice %d wrong", dtype_name(t), elems, r);
    CHECK(f, comm_test_coded_same(send, bytes, f->rank, 1), "send was changed");
    if (!in_place)
        free(send);
    free(recv);
}

void comm_case_all_gather(comm_fixture *f)
{
    for (int i = 0; i < N_SIZES; i++) {
        for (int t = 0; t < 4; t++) {
            all_gather_once(f, types[t], sizes[i], false);
            all_gather_once(f, types[t], sizes[i], true);
        }
    }
}

void comm_case_broadcast(comm_fixture *f)
{
    for (int i = 0; i < N_SIZES; i++) {
        for (int root = 0; root < f->world; root++) {
            dtype t = types[(i + root) % 4];
            size_t bytes = sizes[i] * dtype_bytes(t);
            char *buf = comm_test_alloc(bytes);
            comm_test_coded_fill(buf, bytes, f->rank, 2);
            void *there = comm_test_up(f, buf, bytes);
            CHECK_OK(f, comm_broadcast(f->c, f->s, "bcast", t, there, sizes[i], root));
            comm_test_down(f, buf, there, bytes);
            CHECK(f, comm_test_coded_same(buf, bytes, root, 2), "%zu from root %d", sizes[i], root);
            free(buf);
        }
    }
}

/* Slice for rank p in what rank r sends, coded by both. */
void comm_case_all_to_all(comm_fixture *f)
{
    for (int i = 0; i < N_SIZES; i++) {
        dtype t = types[i % 4];
        size_t bytes = sizes[i] * dtype_bytes(t), world = (size_t)f->world;
        char *send = comm_test_alloc(bytes * world), *recv = comm_test_alloc(bytes * world);
        for (int p = 0; p < f->world; p++)
            comm_test_coded_fill(send + bytes * (size_t)p, bytes, f->rank, p);
        void *from = comm_test_up(f, send, bytes * world);
        void *to = comm_test_up(f, recv, bytes * world);
        CHECK_OK(f, comm_all_to_all(f->c, f->s, "a2a", t, from, to, sizes[i]));
        comm_test_down(f, send, from, bytes * world);
        comm_test_down(f, recv, to, bytes * world);
        for (int r = 0; r < f->world; r++)
            CHECK(f, comm_test_coded_same(recv + bytes * (size_t)r, bytes, r, f->rank),
                  "%zu from %d", sizes[i], r);
        free(send);
        free(recv);
    }
}

/* Elements that rank r sends to rank p: some pairs have none. */
static size_t pair_elems(int r, int p)
{
    return (size_t)((r * 3 + p * 2) % 5) * 7;
}

void comm_case_all_to_allv(comm_fixture *f)
{
    size_t send_elems[64], recv_elems[64], n_send = 0, n_recv = 0;
    for (int p = 0; p < f->world; p++) {
        n_send += send_elems[p] = pair_elems(f->rank, p);
        n_recv += recv_elems[p] = pair_elems(p, f->rank);
    }
    char *send = comm_test_alloc(n_send * 4), *recv = comm_test_alloc(n_recv * 4);
    char *at = send;
    for (int p = 0; p < f->world; p++, at += send_elems[p - 1] * 4)
        comm_test_coded_fill(at, send_elems[p] * 4, f->rank, p);
    void *from = comm_test_up(f, send, n_send * 4), *to = comm_test_up(f, recv, n_recv * 4);
    CHECK_OK(f, comm_all_to_allv(f->c, f->s, "a2av", DTYPE_F32, from, send_elems, to, recv_elems));
    memset(send_elems, 0, sizeof send_elems); /* lengths are read during the call only */
    comm_test_down(f, send, from, n_send * 4);
    comm_test_down(f, recv, to, n_recv * 4);
    at = recv;
    for (int r = 0; r < f->world; r++, at += recv_elems[r - 1] * 4)
        CHECK(f, comm_test_coded_same(at, recv_elems[r] * 4, r, f->rank), "from %d", r);
    free(send);
    free(recv);
}

/* Nobody leaves before the last has come. */
void comm_case_barrier(comm_fixture *f)
{
    double *come;
    usleep((useconds_t)(20000 * (f->world - 1 - f->rank)));
    double mine = clock_now_s();
    CHECK_OK(f, comm_barrier(f->c, f->s, "barrier"));
    CHECK_OK(f, stream_sync(f->s));
    double left = clock_now_s();
    void *new_come = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "times", &mine, sizeof mine, &new_come));
    come = new_come;
    for (int r = 0; come != NULL && r < f->world; r++)
        CHECK(f, left >= come[r], "left %.6f s before rank %d came", come[r] - left, r);
    free(come);
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* A micro-step: every rank's values, slice lengths given; leaf (step, rank) is
 * rough(rank, i, step). */
static void reduce_once(comm_fixture *f, grad_acc *acc, const size_t *lengths, bool equal, int step)
{
    size_t total = 0;
    for (int r = 0; r < f->world; r++)
        total += lengths[r];
    float *send = comm_test_alloc(total * sizeof *send);
    for (size_t i = 0; i < total; i++)
        send[i] = rough(f->rank, i, step);
    float *from = comm_test_up(f, send, total * sizeof *send);
    if (equal)
        CHECK_OK(f, comm_reduce_scatter(f->c, f->s, "rs", from, lengths[0], acc, 0));
    else
        CHECK_OK(f,
                 comm_reduce_scatterv(f->c, f->s, "rs", from,
                                      slices_of(lengths, f->world, (comm_slice[64]){{0}}), acc, 0));
    comm_test_down(f, send, from, total * sizeof *send);
    for (size_t i = 0; i < total; i++)
        CHECK(f, send[i] == rough(f->rank, i, step), "send was changed");
    free(send);
}

/* sum [elems] = what an accumulator has finished, which is freed. */
static void sum_down(comm_fixture *f, float *sum, float *there, size_t elems)
{
    if (there == NULL)
        return;
    CHECK_OK(f, device_download(f->s, sum, there, elems * sizeof *sum));
    device_free(f->s, there);
    CHECK_OK(f, stream_sync(f->s));
}

/* Whether the library of the device's own transport adds in fast mode, in an order of its own. */
static bool own_sums(const comm_fixture *f)
{
    const char *name = comm_backend_name(f->c);
    return strncmp(name, "nccl", 4) == 0 || strncmp(name, "hccl", 4) == 0; /* also below a link */
}

/* The error of n-1 additions in any order: at most (n-1) u (1 + O(nu)) sum |x|, u = 2^-24 [Higham,
 * Accuracy and Stability, ch. 4]. */
static bool near(float sum, const float *leaves, size_t n)
{
    double exact = 0, size = 0;
    for (size_t l = 0; l < n; l++) {
        exact += (double)leaves[l];
        size += fabs((double)leaves[l]);
    }
    return fabs((double)sum - exact) <= (double)n * 0x1p-24 * size;
}

/* steps micro-steps into one accumulator; every bit of the sum against its definition. */
static void reduce_and_compare(comm_fixture *f, grad_acc_mode mode, const size_t *lengths,
                               bool equal, int steps)
{
    size_t own = lengths[f->rank], first = 0, n_leaves = (size_t)(steps * f->world);
    for (int r = 0; r < f->rank; r++)
        first += lengths[r];
    grad_acc acc;
    grad_acc_init(&acc, mode, f->sums, own, MEM_GRADS_SHARD, "sum");
    for (int a = 0; a < steps; a++)
        reduce_once(f, &acc, lengths, equal, a);
    CHECK(f, acc.n_pushed == (int)n_leaves, "%d vectors pushed", acc.n_pushed);
    float *there = NULL, *leaves = comm_test_alloc(n_leaves * sizeof *leaves);
    float *sum = comm_test_alloc(own * sizeof *sum);
    size_t run = (size_t)f->c->data->fast_run;
    CHECK_OK(f, grad_acc_finish(&acc, f->s, &there));
    sum_down(f, sum, there, own);
    for (size_t i = 0; i < own && there != NULL; i++) {
        float plain = 0, host = 0;
        for (size_t l = 0; l < n_leaves; l++) {
            leaves[l] = rough((int)(l % (size_t)f->world), first + i, (int)(l / (size_t)f->world));
            host = l % run == 0 ? leaves[l] : host + leaves[l];
            if (l % run == run - 1)
                plain = l < run ? host : plain + host;
        }
        float want = mode == GRAD_ACC_FAST ? plain : tree_expected(leaves, n_leaves);
        bool of_library = mode == GRAD_ACC_FAST && equal && own_sums(f);
        CHECK(f,
              of_library ? near(sum[i], leaves, n_leaves)
                         : memcmp(&sum[i], &want, sizeof want) == 0,
              "slice of %zu, element %zu: %a, not %a", own, i, (double)sum[i], (double)want);
    }
    free(leaves);
    free(sum);
    grad_acc_free(&acc, f->s);
}

void comm_case_reduce_scatter(comm_fixture *f)
{
    size_t lengths[64];
    for (int i = 0; i < N_SIZES; i++) {
        for (int r = 0; r < f->world; r++)
            lengths[r] = sizes[i];
        reduce_and_compare(f, GRAD_ACC_FAST, lengths, true, 1 + i % 3);
        reduce_and_compare(f, GRAD_ACC_CANONICAL, lengths, true, 1 + i % 3);
    }
}

void comm_case_reduce_scatterv(comm_fixture *f)
{
    size_t lengths[64];
    for (int k = 0; k < 4; k++) {
        for (int r = 0; r < f->world; r++)
            lengths[r] = (r + k) % 3 == 0 ? 0 : (size_t)(r * 13 + k);
        reduce_and_compare(f, GRAD_ACC_FAST, lengths, false, 2);
        reduce_and_compare(f, GRAD_ACC_CANONICAL, lengths, false, 3);
    }
}

/* ---- shards that are several pieces of an array ---------------------------------------------- */

enum { MATRICES = 4, MAX_PIECES = MATRICES * 64 };

/* Matrices of 5, 1, 12 and 3 rows of row_elems, at gaps of one element; each rank has an equal
 * number of rows of each, rounded up, and the last ranks have fewer or none. */
typedef struct rows {
    comm_piece list[MAX_PIECES];
    comm_pieces pieces;
    size_t array_elems;
} rows;

static void rows_make(int world, size_t row_elems, rows *x)
{
    static const size_t ROWS[MATRICES] = {5, 1, 12, 3};
    const size_t w = (size_t)world;
    size_t shard_elems = 1, n = 0; /* an element of padding at the end of each */
    for (int m = 0; m < MATRICES; m++)
        shard_elems += (ROWS[m] + w - 1) / w * row_elems;
    for (size_t r = 0; r < w; r++) {
        size_t at = r * shard_elems, begin = 0;
        for (int m = 0; m < MATRICES; m++) {
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

static void gather_pieces_once(comm_fixture *f, dtype t, size_t row_elems, bool shared)
{
    rows x;
    rows_make(f->world, row_elems, &x);
    const size_t b = dtype_bytes(t), shard = x.pieces.shard_elems * b, array = x.array_elems * b;
    char *recv = comm_test_alloc(array), *want = comm_test_alloc(array);
    char *send = comm_test_alloc(shard), *theirs = comm_test_alloc(shard);
    memset(recv, 0xAA, array);
    memset(want, 0xAA, array);
    comm_test_coded_fill(send, shard, f->rank, 4);
    for (size_t i = 0; i < x.pieces.n; i++) {
        const comm_piece *p = &x.list[i];
        comm_test_coded_fill(theirs, shard, (int)(p->at / x.pieces.shard_elems), 4);
        memcpy(want + p->begin * b, theirs + p->at % x.pieces.shard_elems * b, p->elems * b);
    }
    void *to = comm_test_up(f, recv, array), *from = NULL;
    CHECK_OK(f, shared ? comm_alloc(f->c, f->s, MEM_OTHER, shard, "shard", &from) : FSDP_OK);
    if (shared)
        CHECK_OK(f, device_upload(f->s, from, send, shard));
    else
        from = comm_test_up(f, send, shard);
    CHECK_OK(f, comm_all_gather_pieces(f->c, f->s, "rows", t, from, to, &x.pieces));
    comm_test_down(f, recv, to, array);
    if (shared)
        device_free(f->s, from);
    else
        comm_test_down(f, send, from, shard);
    CHECK(f, memcmp(recv, want, array) == 0, "%s, rows of %zu: wrong", dtype_name(t), row_elems);
    free(recv);
    free(want);
    free(send);
    free(theirs);
}

void comm_case_all_gather_pieces(comm_fixture *f)
{
    static const size_t ROW_ELEMS[] = {0, 1, 40, 1500};
    for (int i = 0; i < 4; i++)
        for (int shared = 0; shared < 2; shared++) {
            gather_pieces_once(f, DTYPE_F32, ROW_ELEMS[i], shared);
            gather_pieces_once(f, DTYPE_BF16, ROW_ELEMS[i], shared);
        }
}

/* What rank r adds to element i. Sums of these are exact in bf16. */
static float addend(const grad_acc *acc, int r, size_t i, int step)
{
    return acc->sum_dtype == DTYPE_F32 ? rough(r, i, step) : (float)((i + (size_t)r) % 5);
}

static void reduce_pieces_once(comm_fixture *f, grad_acc *acc, const rows *x, int step)
{
    float *send = comm_test_alloc(x->array_elems * sizeof *send);
    for (size_t i = 0; i < x->array_elems; i++)
        send[i] = addend(acc, f->rank, i, step);
    float *from = comm_test_up(f, send, x->array_elems * sizeof *send);
    CHECK_OK(f, comm_reduce_scatter_pieces(f->c, f->s, "rows", from, &x->pieces, acc, 0));
    comm_test_down(f, send, from, x->array_elems * sizeof *send);
    for (size_t i = 0; i < x->array_elems; i++)
        CHECK(f, send[i] == addend(acc, f->rank, i, step), "send was changed");
    free(send);
}

static void reduce_pieces_and_compare(comm_fixture *f, grad_acc_mode mode, dtype sums,
                                      size_t row_elems)
{
    enum { STEPS = 3 };
    rows x;
    rows_make(f->world, row_elems, &x);
    const size_t shard = x.pieces.shard_elems, n_leaves = (size_t)(STEPS * f->world);
    grad_acc acc;
    grad_acc_init(&acc, mode, f->sums, shard, MEM_GRADS_SHARD, "sum");
    acc.sum_dtype = sums;
    for (int a = 0; a < STEPS; a++)
        reduce_pieces_once(f, &acc, &x, a);
    float *there = NULL, *leaves = comm_test_alloc(n_leaves * sizeof *leaves);
    float *sum = comm_test_alloc(shard * sizeof *sum);
    CHECK_OK(f, grad_acc_finish(&acc, f->s, &there));
    sum_down(f, sum, there, shard);
    for (size_t k = 0; k < x.pieces.n && there != NULL; k++) {
        const comm_piece *p = &x.list[k];
        for (size_t i = 0; p->at / shard == (size_t)f->rank && i < p->elems; i++) {
            for (size_t l = 0; l < n_leaves; l++)
                leaves[l] = addend(&acc, (int)l % f->world, p->begin + i, (int)l / f->world);
            const float got = sum[p->at % shard + i], want = tree_expected(leaves, n_leaves);
            CHECK(f, mode == GRAD_ACC_FAST ? near(got, leaves, n_leaves) : got == want,
                  "rows of %zu, piece %zu, element %zu: %a, not %a", row_elems, k, i, (double)got,
                  (double)want);
        }
    }
    free(leaves);
    free(sum);
    grad_acc_free(&acc, f->s);
}

void comm_case_reduce_scatter_pieces(comm_fixture *f)
{
    static const size_t ROW_ELEMS[] = {1, 40, 1500};
    for (int i = 0; i < 3; i++) {
        reduce_pieces_and_compare(f, GRAD_ACC_FAST, DTYPE_F32, ROW_ELEMS[i]);
        reduce_pieces_and_compare(f, GRAD_ACC_CANONICAL, DTYPE_F32, ROW_ELEMS[i]);
        reduce_pieces_and_compare(f, GRAD_ACC_CANONICAL, DTYPE_BF16, ROW_ELEMS[i]);
    }
}

void comm_case_all_reduce_f32(comm_fixture *f)
{
    float leaves[64];
    for (int n = 0; n < N_SIZES; n++) {
        float *buf = comm_test_alloc(sizes[n] * sizeof *buf);
        for (size_t i = 0; i < sizes[n]; i++)
            buf[i] = rough(f->rank, i, n);
        void *there = comm_test_up(f, buf, sizes[n] * sizeof *buf);
        CHECK_OK(f, comm_all_reduce(f->c, f->s, "ar", DTYPE_F32, there, sizes[n]));
        comm_test_down(f, buf, there, sizes[n] * sizeof *buf);
        for (size_t i = 0; i < sizes[n]; i++) {
            for (int r = 0; r < f->world; r++)
                leaves[r] = rough(r, i, n);
            float want = tree_expected(leaves, (size_t)f->world);
            CHECK(f, memcmp(&buf[i], &want, sizeof want) == 0, "%zu elements, %zu: %a, not %a",
                  sizes[n], i, (double)buf[i], (double)want);
        }
        free(buf);
    }
}

/* Above 2^53, where a double would round; and wrapping. */
void comm_case_all_reduce_i64(comm_fixture *f)
{
    for (int n = 0; n < N_SIZES; n++) {
        int64_t *buf = comm_test_alloc(sizes[n] * sizeof *buf);
        for (size_t i = 0; i < sizes[n]; i++)
            buf[i] = ((int64_t)1 << 60) + (int64_t)(i * 1000) + f->rank;
        void *there = comm_test_up(f, buf, sizes[n] * sizeof *buf);
        CHECK_OK(f, comm_all_reduce(f->c, f->s, "ar", DTYPE_I64, there, sizes[n]));
        comm_test_down(f, buf, there, sizes[n] * sizeof *buf);
        uint64_t world = (uint64_t)f->world;
        for (size_t i = 0; i < sizes[n]; i++) {
            uint64_t want = world * (((uint64_t)1 << 60) + i * 1000) + world * (world - 1) / 2;
            CHECK(f, (uint64_t)buf[i] == want, "element %zu", i);
        }
        free(buf);
    }
}

void comm_case_grad_acc_empty(comm_fixture *f)
{
    for (int mode = 0; mode < 2; mode++) {
        grad_acc acc;
        float *there = NULL, sum[5] = {0};
        grad_acc_init(&acc, (grad_acc_mode)mode, f->sums, 5, MEM_GRADS_SHARD, "empty");
        CHECK_OK(f, grad_acc_finish(&acc, f->s, &there));
        memset(sum, 1, sizeof sum);
        sum_down(f, sum, there, 5);
        for (int i = 0; i < 5; i++)
            CHECK(f, sum[i] == 0, "element %d is %g", i, (double)sum[i]);
        /* a sum left half done is given back by free */
        float one[5] = {1, 2, 3, 4, 5};
        float *vec = comm_test_up(f, one, sizeof one);
        CHECK_OK(f, grad_acc_push(&acc, f->s, 0, vec));
        comm_test_down(f, one, vec, sizeof one);
        grad_acc_free(&acc, f->s);
        grad_acc zeroed = {0};
        grad_acc_free(&zeroed, f->s);
    }
}
