/* npu_work_lib.c -- tasks 6.4 to 6.6, through comm.h, ops.h and the engine of labs 1 to 5. */
#include "tests/grade/npu_work_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/accel/native.h"
#include "common/comm/transport.h"
#include "lab6_npu/hccl_call.h"
#include "lab6_npu/npu_impl.h"
#include "tests/equivalence/run_lib.h"
#include "tests/grade/npu_lib.h"

/* ---- 6.4 ------------------------------------------------------------------------------------- */

static const size_t GATHERED[] = {1, 5, 32, 4099};
enum { CANARY = 0x5a };

/* Byte i of rank r's slice; no two ranks have the same. */
static unsigned char coded(int r, size_t i)
{
    return (unsigned char)(16 * (r + 1) + (int)(i % 13));
}

static fsdp_status expect_slices(npu *n, const char *what, const unsigned char *got,
                                 size_t slice_bytes)
{
    for (int r = 0; r < n->g->world_size; r++)
        for (size_t i = 0; i < slice_bytes; i++) {
            char text[96];
            snprintf(text, sizeof text, "%s: byte %zu of rank %d's slice of %zu", what, i, r,
                     slice_bytes);
            TRY(expect_int(text, got[(size_t)r * slice_bytes + i], coded(r, i)));
        }
    return expect_int("the byte behind an all-gather", got[slice_bytes * (size_t)n->g->world_size],
                      CANARY);
}

static void code_own(npu *n, unsigned char *whole, size_t slice_bytes)
{
    size_t bytes = slice_bytes * (size_t)n->g->world_size;
    memset(whole, 0xff, bytes);
    for (size_t i = 0; i < slice_bytes; i++)
        whole[(size_t)n->g->rank * slice_bytes + i] = coded(n->g->rank, i);
    whole[bytes] = CANARY;
}

/* In place, as lab 2 gathers. */
static fsdp_status gathers(npu *n, dtype t)
{
    for (size_t k = 0; k < sizeof GATHERED / sizeof *GATHERED; k++) {
        size_t slice_bytes = GATHERED[k] * dtype_bytes(t);
        size_t bytes = slice_bytes * (size_t)n->g->world_size + 1;
        unsigned char *host = malloc(bytes);
        void *recv;
        code_own(n, host, slice_bytes);
        fsdp_status status = npu_block(n, host, bytes, &recv);
        if (status == FSDP_OK)
            status =
                comm_all_gather(n->comm, n->compute, "gather", t,
                                (char *)recv + (size_t)n->g->rank * slice_bytes, recv, GATHERED[k]);
        if (status == FSDP_OK)
            status = grade_read(n->compute, recv, bytes, host);
        if (status == FSDP_OK)
            status = expect_slices(n, dtype_name(t), host, slice_bytes);
        free(host);
        TRY(status);
    }
    return FSDP_OK;
}

/* The input is written behind a gate, and what the host fetches is issued before that opens. */
static fsdp_status gather_in_order(npu *n)
{
    enum { SLICE = 1000 };
    size_t bytes = (size_t)SLICE * (size_t)n->g->world_size + 1;
    stream *other;
    void *recv;
    static unsigned char host[4 * SLICE + 1];
    FSDP_ASSERT(n->g->world_size <= 4);
    TRY(npu_stream(n, "gather", &other));
    TRY(npu_block(n, NULL, bytes, &recv));
    TRY(gate_close(n->g, n->compute));
    code_own(n, host, SLICE);
    TRY(grade_write(n->compute, recv, host, bytes));
    TRY(npu_order(n, n->compute, other));
    TRY(comm_all_gather(n->comm, other, "gather", DTYPE_U8,
                        (char *)recv + (size_t)n->g->rank * SLICE, recv, SLICE));
    TRY(npu_order(n, other, n->compute));
    TRY(grade_fetch(n->compute, recv, bytes, host));
    TRY(gate_open(n->g, "an all-gather is issued"));
    TRY(stream_sync(n->compute));
    return expect_slices(n, "behind an event", host, SLICE);
}

/* Calls on two streams, which no event of the caller's orders. */
static fsdp_status gathers_in_turn(npu *n)
{
    enum { CALLS = 6, SLICE = 3000 };
    size_t bytes = (size_t)SLICE * (size_t)n->g->world_size + 1;
    static unsigned char host[4 * SLICE + 1];
    stream *other;
    void *recv[CALLS];
    FSDP_ASSERT(n->g->world_size <= 4);
    TRY(npu_stream(n, "other", &other));
    code_own(n, host, SLICE);
    for (int k = 0; k < CALLS; k++)
        TRY(npu_block(n, host, bytes, &recv[k]));
    TRY(npu_order(n, n->compute, other));
    for (int k = 0; k < CALLS; k++)
        TRY(comm_all_gather(n->comm, k % 2 == 0 ? n->compute : other, "gather", DTYPE_U8,
                            (char *)recv[k] + (size_t)n->g->rank * SLICE, recv[k], SLICE));
    TRY(npu_order(n, other, n->compute));
    for (int k = 0; k < CALLS; k++) {
        TRY(grade_read(n->compute, recv[k], bytes, host));
        TRY(expect_slices(n, "on two streams in turn", host, SLICE));
    }
    return FSDP_OK;
}

/* Sums of the test's own, on the host: what the NPU adds with is task 6.5. They are of one node and
 * an accumulator that holds none: HCCL has added already. */
static fsdp_status host_cast(stream *s, const cast_args *a)
{
    float *wide = calloc(a->elems + 1, sizeof *wide);
    uint16_t *half = calloc(a->elems + 1, sizeof *half);
    const size_t wide_bytes = a->elems * sizeof *wide, half_bytes = a->elems * sizeof *half;
    const bool from_half = a->in_type == DTYPE_BF16, to_half = a->out_type == DTYPE_BF16;
    FSDP_ASSERT(wide && half);
    fsdp_status status = grade_read(s, a->in, from_half ? half_bytes : wide_bytes,
                                    from_half ? (void *)half : (void *)wide);
    for (size_t i = 0; i < a->elems; i++) {
        wide[i] = from_half ? f32_from_bf16(half[i]) : wide[i];
        half[i] = bf16_from_f32(wide[i]);
    }
    if (status == FSDP_OK)
        status = grade_write(s, a->out, to_half ? (void *)half : (void *)wide,
                             to_half ? half_bytes : wide_bytes);
    free(wide);
    free(half);
    return status;
}

static fsdp_status host_launch(stream *s, const sum_launch *l)
{
    const sum_run *r = l->run;
    FSDP_ASSERT(r->n_in == 1 && r->n_before == 0 && r->after[0] != NULL);
    return host_cast(
        s, &(cast_args){
               .out = r->after[0], .in = l->in[0], .in_type = r->sum_dtype, .elems = r->elems});
}

static const sum_kernels HOST_SUMS = {.cast = host_cast, .launch = host_launch};

/* Rank r contributes (r+1)*(j%50+1) to element j: sums are small integers, in bf16 too. */
static fsdp_status scatters(npu *n, size_t elems, dtype sum_dtype, const sum_kernels *kernels)
{
    const int w = n->g->world_size;
    size_t all = elems * (size_t)w;
    float *host = calloc(2 * all + 1, sizeof *host), *want = host + all, *sum = NULL;
    void *send;
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, kernels, elems, MEM_OTHER, "sum");
    acc.sum_dtype = sum_dtype;
    for (size_t j = 0; j < all; j++)
        host[j] = (float)((n->g->rank + 1) * (int)(j % 50 + 1));
    for (size_t i = 0; i < elems; i++)
        want[i] = (float)(w * (w + 1) / 2 * (int)(((size_t)n->g->rank * elems + i) % 50 + 1));
    fsdp_status status = npu_block(n, host, all * sizeof *host, &send);
    if (status == FSDP_OK)
        status = comm_reduce_scatter(n->comm, n->compute, "sum", send, elems, &acc, 0);
    if (status == FSDP_OK)
        status = grad_acc_finish(&acc, n->compute, &sum);
    if (status == FSDP_OK)
        status = grade_read(n->compute, sum, elems * sizeof *host, host);
    char what[80];
    snprintf(what, sizeof what, "reduce-scatter of %s, %zu elements a rank: the sum",
             dtype_name(sum_dtype), elems);
    if (status == FSDP_OK)
        status = expect_f32(what, host, want, elems);
    fsdp_error_info why = *fsdp_error_get();
    device_free(n->compute, sum);
    grad_acc_free(&acc, n->compute);
    free(host);
    fsdp_error_set(&why);
    return status;
}

static fsdp_status expect_environment(npu *n, const char *was)
{
    const char *now = was;
    if (was != NULL)
        setenv("HCCL_DETERMINISTIC", was, 1);
    else
        unsetenv("HCCL_DETERMINISTIC");
    TRY(npu_comm(n));
    now = getenv("HCCL_DETERMINISTIC");
    if (n->g->world_size == 1) /* no HCCL */
        return FSDP_OK;
    return expect_text(was ? "HCCL_DETERMINISTIC, which was set before HCCL's first communicator"
                           : "HCCL_DETERMINISTIC, which nobody set before HCCL's first "
                             "communicator",
                       now != NULL ? now : "not set", was ? was : "true");
}

static fsdp_status keeps_environment(npu *n)
{
    return expect_environment(n, "strict");
}

/* The functions of hccl.c, when the call of HCCL that they make fails: on a communicator of this
 * rank alone. */
static fsdp_status says_why(npu *n, const native_api *api, void *q)
{
    char id[HCCL_CALL_ID_BYTES];
    const comm_team team = {.size = 1, .step = 1, .dev = n->dev};
    void *handle = NULL, *buf;
    TRY(npu_block(n, NULL, 256, &buf));
    if (!npu_break("HcclGetRootInfo"))
        return FSDP_OK;
    TRY(npu_said("HcclGetRootInfo", api->id_make(id), FSDP_ECOMM));
    npu_break(NULL);
    TRY(api->id_make(id));
    npu_break("HcclCommInitRootInfo");
    TRY(npu_said("HcclCommInitRootInfo", api->start(n->dev, &team, id, &handle), FSDP_ECOMM));
    npu_break(NULL);
    TRY(api->start(n->dev, &team, id, &handle));
    const native_call gather = {&team, "all-gather", buf, buf, 256, DTYPE_U8, 0, NULL};
    const native_call scatter = {&team, "reduce-scatter", buf, buf, 64, DTYPE_F32, 0, NULL};
    npu_break("HcclAllGather");
    TRY(npu_said("HcclAllGather", api->all_gather(handle, &gather, q), FSDP_ECOMM));
    npu_break("HcclReduceScatter");
    TRY(npu_said("HcclReduceScatter", api->reduce_scatter(handle, &scatter, q), FSDP_ECOMM));
    npu_break(NULL);
    api->destroy(handle);
    return FSDP_OK;
}

static fsdp_status failures(npu *n)
{
    void (*api)(void), (*function)(void), *(*queue_of)(stream *);
    const native_api *table;
    TRY(npu_function("hccl_api", &api));
    memcpy(&table, &api, sizeof api);
    TRY(npu_function("accel_queue_of", &function));
    memcpy(&queue_of, &function, sizeof function);
    return says_why(n, table, queue_of(n->compute));
}

static fsdp_status collectives(npu *n)
{
    TRY(expect_environment(n, NULL));
    if (n->g->world_size > 1)
        TRY(expect_text("who moves the data", comm_backend_name(n->comm),
                        n->backend->native->name));
    TRY(gathers(n, DTYPE_F32));
    TRY(gathers(n, DTYPE_BF16));
    TRY(gathers(n, DTYPE_U8));
    TRY(gather_in_order(n));
    TRY(gathers_in_turn(n));
    TRY(scatters(n, 1, DTYPE_F32, &HOST_SUMS));
    TRY(scatters(n, 37, DTYPE_F32, &HOST_SUMS));
    TRY(scatters(n, 4099, DTYPE_F32, &HOST_SUMS));
    return scatters(n, 37, DTYPE_BF16, &HOST_SUMS);
}

fsdp_status task_6_4(grade *g)
{
    TRY(npu_run(g, collectives));
    TRY(npu_run(g, keeps_environment));
    return npu_run(g, failures);
}

/* ---- 6.5 ------------------------------------------------------------------------------------- */

enum { M = 5, N = 7, K = 24, MOST_ELEMS = K * N, LEAD = 3 };

/* A product whose numbers are integers that bf16 holds: every order of the sums gives the same. */
typedef struct product {
    const char *what;
    bool trans_a, trans_b, accumulate, extras; /* bias and residual */
    dtype type, out_type;
    bool wide; /* numbers of 13 bits: HF32 and bf16 have fewer */
} product;

static const product PRODUCTS[] = {
    {"a b", false, false, false, false, DTYPE_F32, DTYPE_F32, false},
    {"a b^T", false, true, false, false, DTYPE_F32, DTYPE_F32, false},
    {"a^T b", true, false, false, false, DTYPE_F32, DTYPE_F32, false},
    {"a^T b^T", true, true, false, false, DTYPE_F32, DTYPE_F32, false},
    {"a b^T + bias + residual", false, true, false, true, DTYPE_F32, DTYPE_F32, false},
    {"out + a^T b", true, false, true, false, DTYPE_F32, DTYPE_F32, false},
    {"a b, of numbers of 13 bits", false, false, false, false, DTYPE_F32, DTYPE_F32, true},
    {"a b^T in bf16", false, true, false, false, DTYPE_BF16, DTYPE_BF16, false},
    {"out + a^T b of bf16", true, false, true, false, DTYPE_BF16, DTYPE_F32, false},
};

enum { WIDE = 9 }; /* a salt */

static float small_int(size_t i, unsigned salt)
{
    const int small = (int)((i * 7 + salt % WIDE * 5) % 5) - 2;
    return (float)(salt == WIDE ? 4097 * small : small);
}

/* values [elems] of the type, as the device has them. They begin LEAD elements behind an aligned
 * address, as a part of an array may. */
static fsdp_status small_block(npu *n, dtype t, size_t elems, unsigned salt, void **out)
{
    float wide[LEAD + MOST_ELEMS] = {0};
    uint16_t half[LEAD + MOST_ELEMS] = {0};
    FSDP_ASSERT(elems <= MOST_ELEMS);
    for (size_t i = 0; i < elems; i++) {
        wide[LEAD + i] = small_int(i, salt);
        half[LEAD + i] = bf16_from_f32(wide[LEAD + i]);
    }
    TRY(npu_block(n, t == DTYPE_BF16 ? (void *)half : (void *)wide, (LEAD + elems) * dtype_bytes(t),
                  out));
    *out = (char *)*out + LEAD * dtype_bytes(t);
    return FSDP_OK;
}

static float expected(const product *p, size_t i, size_t j)
{
    float sum = p->accumulate ? small_int(i * N + j, 2) : 0.0f;
    for (size_t k = 0; k < K; k++)
        sum += small_int(p->trans_a ? k * M + i : i * K + k, p->wide ? WIDE : 0) *
               small_int(p->trans_b ? j * K + k : k * N + j, 1);
    return p->extras ? sum + small_int(j, 3) + small_int(i * N + j, 4) : sum;
}

static fsdp_status expect_product(const product *p, const void *got)
{
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            char what[64];
            float want = expected(p, i, j),
                  value = p->out_type == DTYPE_BF16
                              ? f32_from_bf16(((const uint16_t *)got)[i * N + j])
                              : ((const float *)got)[i * N + j];
            snprintf(what, sizeof what, "%s: row %zu, column %zu, value", p->what, i, j);
            TRY(expect_f32(what, &value, &want, 1));
        }
    return FSDP_OK;
}

/* Issued while the stream stands at a gate; the host goes on, takes memory and fills it. So what is
 * taken away too early has been overwritten when the product runs. */
static fsdp_status one_product(npu *n, const product *p)
{
    void *a, *b, *out, *bias, *residual, *churn;
    unsigned char got[M * N * sizeof(float)];
    TRY(small_block(n, p->type, M * K, p->wide ? WIDE : 0, &a));
    TRY(small_block(n, p->type, K * N, 1, &b));
    TRY(small_block(n, p->out_type, M * N, 2, &out));
    TRY(small_block(n, p->type, N, 3, &bias));
    TRY(small_block(n, p->type, M * N, 4, &residual));
    TRY(gate_close(n->g, n->compute));
    TRY(n->backend->fast()->matmul(n->compute,
                                   &(matmul_args){.out = out,
                                                  .a = a,
                                                  .b = b,
                                                  .bias = p->extras ? bias : NULL,
                                                  .residual = p->extras ? residual : NULL,
                                                  .m = M,
                                                  .n = N,
                                                  .k = K,
                                                  .trans_a = p->trans_a,
                                                  .trans_b = p->trans_b,
                                                  .accumulate = p->accumulate,
                                                  .type = p->type,
                                                  .out_type = p->out_type}));
    for (int i = 0; i < 4; i++) {
        TRY(device_alloc(n->compute, MEM_OTHER, (size_t)4096 << i, "what follows", &churn));
        device_free(n->compute, churn);
    }
    TRY(grade_fetch(n->compute, out, M * N * dtype_bytes(p->out_type), got));
    TRY(gate_open(n->g, p->what));
    TRY(stream_sync(n->compute));
    return expect_product(p, got);
}

static fsdp_status products(npu *n)
{
    for (size_t k = 0; k < sizeof PRODUCTS / sizeof *PRODUCTS; k++)
        TRY(one_product(n, &PRODUCTS[k]));
    return FSDP_OK;
}

/* The device memory that a call has taken. */
typedef struct taken {
    int n_blocks;
    size_t bytes; /* of the last one */
    mem_category category;
} taken;

static uint64_t see_taken(void *self, const device_act *act)
{
    taken *t = self;
    if (act->kind == ACT_ALLOC)
        *t = (taken){t->n_blocks + 1, act->bytes, act->category};
    return 0;
}

static fsdp_status expect_workspace(const taken *t, size_t asked_bytes)
{
    if (asked_bytes == 0)
        return EXPECT(t->n_blocks == 0, "a workspace of 0 bytes is NULL",
                      "execute, of an operator that asks for no workspace: took %d blocks of "
                      "device memory, the last of %zu bytes, expected none",
                      t->n_blocks, t->bytes);
    return EXPECT(t->n_blocks == 1 && t->bytes == asked_bytes && t->category == MEM_OTHER,
                  "device_alloc(c->s, MEM_OTHER, c->workspace_bytes, label, &workspace)",
                  "execute, of an operator that asks for %zu bytes of workspace: took %d blocks, "
                  "the last of %zu bytes of '%s', expected one, of 'other'",
                  asked_bytes, t->n_blocks, t->bytes, mem_category_name(t->category));
}

/* bf16, to the end of their block of memory, become fp32. The operator asks for that much
 * workspace. */
static fsdp_status last_elements(npu *n, void (*ask)(size_t), size_t asked_bytes)
{
    enum { ALL = 2048, ELEMS = 13 }; /* kept.c adds nothing to a block of 4096 bytes */
    uint16_t host[ALL];
    float got[ELEMS], want[ELEMS];
    void *in, *out;
    taken t = {0};
    for (int i = 0; i < ALL; i++)
        host[i] = bf16_from_f32((float)(i % 251));
    for (int i = 0; i < ELEMS; i++)
        want[i] = (float)((ALL - ELEMS + i) % 251);
    TRY(npu_block(n, host, sizeof host, &in));
    TRY(npu_block(n, NULL, sizeof got, &out));
    TRY(stream_sync(n->compute));
    ask(asked_bytes);
    device_set_second_watch(n->dev, &(device_watch){.self = &t, .issued = see_taken});
    const fsdp_status status =
        n->backend->fast()->cast(n->compute, &(cast_args){.out = out,
                                                          .in = (uint16_t *)in + ALL - ELEMS,
                                                          .elems = ELEMS,
                                                          .out_type = DTYPE_F32,
                                                          .in_type = DTYPE_BF16});
    ask(0);
    TRY(status);
    TRY(stream_sync(n->compute));
    device_set_second_watch(n->dev, NULL);
    TRY(grade_read(n->compute, out, sizeof got, got));
    TRY(expect_f32("bf16, the last 13 of their block, as fp32: element", got, want, ELEMS));
    return expect_workspace(&t, asked_bytes);
}

/* Attention's mask is of bytes, and stands at the end of a block of 8192. All positions that are
 * seen weigh the same here: the mean of 0, 1 ... t is t/2. A weight is rounded once, so is its
 * product, and their sum up to T times: (T + 2) 2^-24, relative. */
static fsdp_status mask_of_bytes(npu *n)
{
    enum { T = 64, D = 16 };
    static float zeros[T * D], v[T * D], got[T * D], want[T * D];
    void *q, *in, *out, *lse;
    for (int i = 0; i < T * D; i++) {
        v[i] = (float)(i / D);
        want[i] = v[i] / 2;
    }
    TRY(npu_block(n, zeros, sizeof zeros, &q));
    TRY(npu_block(n, v, sizeof v, &in));
    TRY(npu_block(n, NULL, sizeof got, &out));
    TRY(npu_block(n, NULL, T * sizeof(float), &lse));
    const attention_shape shape = {.q_stride = D,
                                   .k_stride = D,
                                   .v_stride = D,
                                   .batch = 1,
                                   .seq_len = T,
                                   .n_head = 1,
                                   .n_kv_head = 1,
                                   .head_dim = D,
                                   .v_head_dim = D,
                                   .scale = 1,
                                   .type = DTYPE_F32};
    TRY(n->backend->fast()->attention(
        n->compute,
        &(attention_args){.out = out, .lse = lse, .q = q, .k = q, .v = in, .shape = shape}));
    TRY(grade_read(n->compute, out, sizeof got, got));
    return expect_close("attention that weighs all the same: element", got, want, T * D, 0,
                        (T + 2) * 0x1p-24);
}

static fsdp_status views_and_workspaces(npu *n)
{
    static const size_t asked_bytes[] = {0, 1, 100, 4096};
    void (*function)(void), (*ask)(size_t);
    if (!npu_break(NULL))
        return FSDP_OK; /* CANN cannot be told what to ask for */
    TRY(npu_function("sim_aclnn_workspace", &function));
    memcpy(&ask, &function, sizeof function);
    for (size_t i = 0; i < sizeof asked_bytes / sizeof *asked_bytes; i++)
        TRY(last_elements(n, ask, asked_bytes[i]));
    return mask_of_bytes(n);
}

/* A product of which one call of CANN fails. Its status says so, with CANN's words unless memory is
 * missing, and neither a description, an executor nor a workspace is left. */
static fsdp_status failed_product(npu *n, const char *call, fsdp_status want)
{
    long (*live)(void);
    void (*function)(void), *a, *b, *out;
    char what[96];
    TRY(npu_function("sim_aclnn_live", &function));
    memcpy(&live, &function, sizeof function);
    TRY(small_block(n, DTYPE_F32, M * K, 0, &a));
    TRY(small_block(n, DTYPE_F32, K * N, 1, &b));
    TRY(small_block(n, DTYPE_F32, M * N, 2, &out));
    TRY(stream_sync(n->compute));
    const size_t blocks = ledger_read(device_ledger(n->dev)).live_blocks;
    const long descriptions = live();
    npu_break(call);
    const fsdp_status status = n->backend->fast()->matmul(
        n->compute, &(matmul_args){.out = out, .a = a, .b = b, .m = M, .n = N, .k = K});
    npu_break(NULL);
    if (want == FSDP_ENOMEM)
        TRY(expect_status("a product without memory for its workspace", status, want));
    else
        TRY(npu_said(call, status, want));
    snprintf(what, sizeof what, "descriptions and executors left when %s fails", call);
    TRY(expect_int(what, live() - descriptions, 0));
    (void)stream_sync(n->compute);
    snprintf(what, sizeof what, "blocks of memory left when %s fails: the workspace", call);
    return expect_int(what, (long long)(ledger_read(device_ledger(n->dev)).live_blocks - blocks),
                      0);
}

/* The workspace: how much aclnn still had, descriptions and executors, when it was taken and when
 * it was given back. The second phase uses an executor up. */
typedef struct workspace_watch {
    long (*live)(void);
    const void *block;
    long taken, given_back; /* -1: not yet */
} workspace_watch;

static uint64_t see_workspace(void *self, const device_act *act)
{
    workspace_watch *w = self;
    if (act->kind == ACT_ALLOC) {
        w->block = act->dst;
        w->taken = w->live();
    }
    if (act->kind == ACT_FREE && act->dst == w->block)
        w->given_back = w->live();
    return 0;
}

static fsdp_status workspace_order(npu *n)
{
    workspace_watch w = {.taken = -1, .given_back = -1};
    void (*function)(void), *a, *b, *out;
    if (!npu_break(NULL))
        return FSDP_OK; /* CANN does not count them */
    TRY(npu_function("sim_aclnn_live", &function));
    memcpy(&w.live, &function, sizeof function);
    TRY(small_block(n, DTYPE_F32, M * K, 0, &a));
    TRY(small_block(n, DTYPE_F32, K * N, 1, &b));
    TRY(small_block(n, DTYPE_F32, M * N, 2, &out));
    TRY(stream_sync(n->compute));
    device_set_second_watch(n->dev, &(device_watch){.self = &w, .issued = see_workspace});
    const fsdp_status status = n->backend->fast()->matmul(
        n->compute, &(matmul_args){.out = out, .a = a, .b = b, .m = M, .n = N, .k = K});
    device_set_second_watch(n->dev, NULL);
    TRY(status);
    TRY(EXPECT(w.taken >= 0 && w.given_back >= 0, "device_alloc and device_free, on c->s",
               "execute: the workspace was not %s", w.taken < 0 ? "taken" : "given back"));
    return EXPECT(
        w.given_back < w.taken, "device_free comes after run()",
        "execute: the workspace was given back before the second phase was called, expected "
        "after it: another stream may get the block while the operator runs");
}

static fsdp_status failed_products(npu *n)
{
    if (!npu_break(NULL))
        return FSDP_OK; /* no call of CANN's fails on demand */
    TRY(failed_product(n, "aclnnMmGetWorkspaceSize", FSDP_EDEVICE));
    TRY(failed_product(n, "aclnnMm", FSDP_EDEVICE));
    return failed_product(n, "aclrtMalloc", FSDP_ENOMEM);
}

fsdp_status task_6_5(grade *g)
{
    TRY(npu_run(g, products));
    TRY(npu_run(g, workspace_order));
    TRY(npu_run(g, views_and_workspaces));
    return npu_run(g, failed_products);
}

/* ---- 6.6 ------------------------------------------------------------------------------------- */

static const model_config SMALL = {.family = "gpt2",
                                   .n_blocks = 2,
                                   .n_head = 2,
                                   .d_model = 32,
                                   .d_ff = 128,
                                   .vocab_size = 61,
                                   .max_seq_len = 16,
                                   .norm_eps = 1e-5f};

/* 12 sequences a step on any number of ranks: 12 = W * b * accumulation, b a power of two. */
static run_config small_config(int world_size, const ops *o, int steps)
{
    static const size_t batch[] = {0, 4, 2, 4, 1};
    FSDP_ASSERT(world_size <= 4);
    return (run_config){.fsdp = true,
                        .prefetch = {.mode = PREFETCH_BOTH, .limit = 2},
                        .model = SMALL,
                        .ops = o,
                        .mode = GRAD_ACC_CANONICAL,
                        .batch = batch[world_size],
                        .seq_len = SMALL.max_seq_len,
                        .corpus_tokens = 1000,
                        .grad_accum = 12 / world_size / (int)batch[world_size],
                        .steps = steps,
                        .lr = 1e-3,
                        .clip_norm = 1.0f,
                        .seed = 3};
}

static fsdp_status expect_same_runs(const run_result *many, const run_result *one)
{
    TRY(expect_f32("loss of step, W ranks against one", many->loss, one->loss,
                   (size_t)many->steps));
    TRY(expect_f32("norm of step, W ranks against one", many->norm, one->norm,
                   (size_t)many->steps));
    return many->params == NULL ? FSDP_OK
                                : expect_f32("weight, W ranks against one", many->params,
                                             one->params, one->param_elems);
}

/* AdamW, clipped: the bits of one rank. */
static fsdp_status trains_alike(npu *n)
{
    run_config c = small_config(n->g->world_size, n->backend->fast(), 2);
    run_result many = {0}, one = {0};
    comm *alone = NULL;
    TRY(npu_comm(n));
    fsdp_status status = run_training(n->dev, n->comm, &c, &many);
    if (status == FSDP_OK)
        status = comm_range(n->comm, n->g->rank, 1, 1, &alone);
    c = small_config(1, n->backend->fast(), 2);
    if (status == FSDP_OK)
        status = run_training(n->dev, alone, &c, &one);
    if (status == FSDP_OK)
        status = expect_same_runs(&many, &one);
    fsdp_error_info why = *fsdp_error_get();
    comm_close(alone);
    run_result_free(&many);
    run_result_free(&one);
    fsdp_error_set(&why);
    return status;
}

/* One step of SGD with this lr leaves -lr * gradient, to the bit: the weights are below half an ulp
 * of it. */
static const float GRADIENT_LR = 0x1p100f;

/* |a - b| / |b|, 2-norms. */
static double distance(const float *a, const float *b, size_t elems)
{
    double off = 0, norm = 0;
    for (size_t i = 0; i < elems; i++) {
        double x = (double)a[i] / (double)GRADIENT_LR, y = (double)b[i] / (double)GRADIENT_LR;
        off += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(off / norm);
}

static run_config gradient_config(int world_size, const ops *o)
{
    run_config c = small_config(world_size, o, 1);
    c.optimizer = OPTIMIZER_SGD;
    c.lr = (double)GRADIENT_LR;
    c.clip_norm = 0;
    return c;
}

/* Three libraries that compute in fp32 and add in other orders differ by roundings alone, and how
 * far these carry is a matter of the model: the CPU's two tables measure it. Eight times that is
 * allowed, and 2^-16 where they hardly differ, for an accelerator's exp and tanh may err by some
 * more units in the last place (2^-24). A factor, a mask or an order that is wrong is at 2^-5 and
 * above. */
static fsdp_status expect_near(const run_result *got, const run_result *portable,
                               const run_result *fast)
{
    double allowed = 8 * distance(fast->params, portable->params, portable->param_elems);
    double off = distance(got->params, portable->params, portable->param_elems);
    allowed = fmax(allowed, 0x1p-16);
    if (!(off <= allowed))
        return fsdp_error(FSDP_EINVAL, "",
                          "the gradient, NPU against CPU: off by %.3g of its length, allowed %.3g",
                          off, allowed);
    double loss = (double)portable->loss[0];
    if (!(fabs((double)got->loss[0] - loss) <= loss * allowed))
        return fsdp_error(FSDP_EINVAL, "", "the loss, NPU against CPU: got %.9g, expected %.9g",
                          (double)got->loss[0], loss);
    return FSDP_OK;
}

static fsdp_status near_the_cpu(npu *n)
{
    run_result got = {0}, portable = {0}, fast = {0};
    run_config c = gradient_config(n->g->world_size, n->backend->fast());
    comm *alone = NULL;
    TRY(npu_comm(n));
    fsdp_status status = run_training(n->dev, n->comm, &c, &got);
    if (status == FSDP_OK)
        status = comm_range(n->g->comm, n->g->rank, 1, 1, &alone);
    c = gradient_config(1, ops_cpu_portable());
    c.fsdp = false;
    if (status == FSDP_OK)
        status = run_training(n->g->dev, alone, &c, &portable);
    c.ops = ops_cpu_fast();
    if (status == FSDP_OK)
        status = run_training(n->g->dev, alone, &c, &fast);
    if (status == FSDP_OK && n->g->rank == 0)
        status = expect_near(&got, &portable, &fast);
    fsdp_error_info why = *fsdp_error_get();
    comm_close(alone);
    run_result_free(&got);
    run_result_free(&portable);
    run_result_free(&fast);
    fsdp_error_set(&why);
    return status;
}

/* Sums of HCCL, kept and rounded by the NPU (task 6.5). */
static fsdp_status sums_on_npu(npu *n)
{
    TRY(npu_comm(n));
    TRY(scatters(n, 37, DTYPE_F32, n->backend->fast()->sums));
    return scatters(n, 37, DTYPE_BF16, n->backend->fast()->sums);
}

fsdp_status task_6_6(grade *g)
{
    TRY(npu_run(g, sums_on_npu));
    TRY(npu_run(g, trains_alike));
    return npu_run(g, near_the_cpu);
}
