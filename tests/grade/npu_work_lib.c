/* npu_work_lib.c -- tasks 6.4 to 6.6, through comm.h, ops.h and the engine of labs 1 to 5. */
#include "tests/grade/npu_work_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/accel/native.h"
#include "common/comm/transport/transport.h"
#include "lab6_npu/hccl_call.h"
#include "lab6_npu/npu_impl.h"
#include "tests/grade/explain_lib.h"
#include "tests/grade/npu_lib.h"

/* ---- 6.4 ------------------------------------------------------------------------------------- */

static const size_t GATHERED[] = {1, 5, 32, 4099};
enum { CANARY = 0x5a, MOST_WORLD = 4, MOST_SLICE = 4099 * 4 };
static unsigned char whole[MOST_WORLD * MOST_SLICE + 1]; /* all-gather's result, canary */

/* Byte i of rank r's slice; no two ranks have the same value. */
static unsigned char coded(int r, size_t i)
{
    return (unsigned char)(16 * (r + 1) + (int)(i % 13));
}

/* Fill whole with this rank's slice in its place and a canary byte after the array. Returns the
 * number of bytes including the canary. */
static size_t code_own(npu *n, size_t slice_bytes)
{
    const size_t bytes = slice_bytes * (size_t)n->g->world_size;
    FSDP_ASSERT(bytes < sizeof whole);
    memset(whole, 0xff, bytes);
    for (size_t i = 0; i < slice_bytes; i++)
        whole[(size_t)n->g->rank * slice_bytes + i] = coded(n->g->rank, i);
    whole[bytes] = CANARY;
    return bytes + 1;
}

static fsdp_status expect_whole(npu *n, const char *what, size_t slice_bytes)
{
    for (int r = 0; r < n->g->world_size; r++)
        for (size_t i = 0; i < slice_bytes; i++)
            TRY(expect_int(WHAT("%s: byte %zu of rank %d's slice of %zu", what, i, r, slice_bytes),
                           whole[(size_t)r * slice_bytes + i], coded(r, i)));
    return expect_int("the byte after an all-gather", whole[slice_bytes * (size_t)n->g->world_size],
                      CANARY);
}

/* Gather in place, as lab 2 does. */
static fsdp_status gather(npu *n, stream *s, void *recv, dtype t, size_t elems)
{
    const void *own = (char *)recv + (size_t)n->g->rank * elems * dtype_bytes(t);
    return comm_all_gather(n->comm, s, "gather", t, own, recv, elems);
}

static fsdp_status gathers(npu *n, dtype t)
{
    for (size_t k = 0; k < sizeof GATHERED / sizeof *GATHERED; k++) {
        const size_t slice_bytes = GATHERED[k] * dtype_bytes(t), bytes = code_own(n, slice_bytes);
        void *recv;
        TRY(npu_block(n, whole, bytes, &recv));
        TRY(gather(n, n->compute, recv, t, GATHERED[k]));
        TRY(grade_read(n->compute, recv, bytes, whole));
        TRY(expect_whole(n, dtype_name(t), slice_bytes));
    }
    return FSDP_OK;
}

/* The input is written after a gate, and the download is issued before the gate opens. */
static fsdp_status gather_in_order(npu *n)
{
    enum { SLICE = 1000 };
    const size_t bytes = code_own(n, SLICE);
    stream *other;
    void *recv;
    TRY(npu_stream(n, "gather", &other));
    TRY(npu_block(n, NULL, bytes, &recv));
    TRY(gate_close(n->g, n->compute));
    TRY(grade_write(n->compute, recv, whole, bytes));
    TRY(npu_order(n, n->compute, other));
    TRY(gather(n, other, recv, DTYPE_U8, SLICE));
    TRY(npu_order(n, other, n->compute));
    TRY(grade_fetch(n->compute, recv, bytes, whole));
    TRY(gate_open(n->g, "an all-gather is issued"));
    TRY(stream_sync(n->compute));
    return expect_whole(n, "after an event", SLICE);
}

/* Calls on two streams without an event of the caller between them. */
static fsdp_status gathers_in_turn(npu *n)
{
    enum { CALLS = 6, SLICE = 3000 };
    const size_t bytes = code_own(n, SLICE);
    stream *other;
    void *recv[CALLS];
    TRY(npu_stream(n, "other", &other));
    for (int k = 0; k < CALLS; k++)
        TRY(npu_block(n, whole, bytes, &recv[k]));
    TRY(npu_order(n, n->compute, other));
    for (int k = 0; k < CALLS; k++)
        TRY(gather(n, k % 2 == 0 ? n->compute : other, recv[k], DTYPE_U8, SLICE));
    TRY(npu_order(n, other, n->compute));
    for (int k = 0; k < CALLS; k++) {
        TRY(grade_read(n->compute, recv[k], bytes, whole));
        TRY(expect_whole(n, "on two streams in turn", SLICE));
    }
    return FSDP_OK;
}

/* Sums on the host, so that this task does not need task 6.5. A sum has one node and an empty
 * accumulator, because HCCL has added already. */
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

/* Rank r contributes (r+1)*(j%50+1) to element j. Sums are small integers, exact in bf16 too. */
static fsdp_status scatter_into(npu *n, grad_acc *acc, size_t elems)
{
    enum { MOST_ELEMS = 4099 };
    static float host[MOST_WORLD * MOST_ELEMS], want[MOST_ELEMS];
    const int w = n->g->world_size;
    float *sum;
    void *send;
    FSDP_ASSERT(elems <= MOST_ELEMS && w <= MOST_WORLD);
    for (size_t j = 0; j < elems * (size_t)w; j++)
        host[j] = (float)((n->g->rank + 1) * (int)(j % 50 + 1));
    for (size_t i = 0; i < elems; i++)
        want[i] = (float)(w * (w + 1) / 2 * (int)(((size_t)n->g->rank * elems + i) % 50 + 1));
    TRY(npu_block(n, host, elems * (size_t)w * sizeof *host, &send));
    TRY(comm_reduce_scatter(n->comm, n->compute, "sum", send, elems, acc, 0));
    TRY(grad_acc_finish(acc, n->compute, &sum));
    const fsdp_status status = grade_read(n->compute, sum, elems * sizeof *host, host);
    device_free(n->compute, sum);
    TRY(status);
    return expect_f32(WHAT("reduce-scatter of %s, %zu elements a rank: the sum",
                           dtype_name(acc->sum_dtype), elems),
                      host, want, elems);
}

static fsdp_status scatters(npu *n, size_t elems, dtype sum_dtype, const sum_kernels *kernels)
{
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, kernels, elems, MEM_OTHER, "sum");
    acc.sum_dtype = sum_dtype;
    const fsdp_status status = scatter_into(n, &acc, elems);
    const fsdp_error_info why = *fsdp_error_get();
    grad_acc_free(&acc, n->compute);
    fsdp_error_set(&why);
    return status;
}

static fsdp_status expect_environment(npu *n, const char *was)
{
    if (was != NULL)
        setenv("HCCL_DETERMINISTIC", was, 1);
    else
        unsetenv("HCCL_DETERMINISTIC");
    TRY(npu_comm(n));
    const char *now = getenv("HCCL_DETERMINISTIC");
    if (n->g->world_size == 1) /* no HCCL */
        return FSDP_OK;
    return expect_text(WHAT("HCCL_DETERMINISTIC, which %s before HCCL's first communicator",
                            was ? "was set" : "nobody set"),
                       now != NULL ? now : "not set", was ? was : "true");
}

static fsdp_status keeps_environment(npu *n)
{
    return expect_environment(n, "strict");
}

/* When an HCCL call fails, hccl.c reports it. The communicator has this rank alone. */
static fsdp_status failures(npu *n)
{
    const native_api *api;
    char id[HCCL_CALL_ID_BYTES];
    const comm_team team = {.size = 1, .step = 1, .dev = n->dev};
    void *handle = NULL, *buf, *q = n->queue_of(n->compute);
    TRY(npu_function("hccl_api", &api));
    if (!n->is_sim)
        return FSDP_OK; /* a real NPU's calls do not fail on demand */
    TRY(npu_block(n, NULL, 256, &buf));
    const native_call gather = {&team, "all-gather", buf, buf, 256, DTYPE_U8, NULL};
    const native_call scatter = {&team, "reduce-scatter", buf, buf, 64, DTYPE_F32, NULL};
    TRY(NPU_FAILS("HcclGetRootInfo", FSDP_ECOMM, api->id_make(id)));
    TRY(api->id_make(id));
    TRY(NPU_FAILS("HcclCommInitRootInfo", FSDP_ECOMM, api->start(n->dev, &team, id, &handle)));
    TRY(api->start(n->dev, &team, id, &handle));
    TRY(NPU_FAILS("HcclAllGather", FSDP_ECOMM, api->all_gather(handle, &gather, q)));
    TRY(NPU_FAILS("HcclReduceScatter", FSDP_ECOMM, api->reduce_scatter(handle, &scatter, q)));
    api->destroy(handle);
    return FSDP_OK;
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

/* A product of integers that bf16 can hold: sums are exact in every order. */
typedef struct product {
    const char *what;
    bool trans_a, trans_b, accumulate, extras; /* bias and residual */
    dtype type, out_type;
    bool wide; /* 13-bit numbers, more than HF32 and bf16 hold */
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

/* A block of values [elems] in the given type. It begins LEAD elements after an aligned address, as
 * part of an array may. */
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
            float want = expected(p, i, j),
                  value = p->out_type == DTYPE_BF16
                              ? f32_from_bf16(((const uint16_t *)got)[i * N + j])
                              : ((const float *)got)[i * N + j];
            TRY(expect_f32(WHAT("%s: row %zu, column %zu, value", p->what, i, j), &value, &want,
                           1));
        }
    return FSDP_OK;
}

/* Write the factors and the other inputs of p to the device. */
static fsdp_status product_args(npu *n, const product *p, matmul_args *args)
{
    void *a, *b, *out, *bias, *residual;
    TRY(small_block(n, p->type, M * K, p->wide ? WIDE : 0, &a));
    TRY(small_block(n, p->type, K * N, 1, &b));
    TRY(small_block(n, p->out_type, M * N, 2, &out));
    TRY(small_block(n, p->type, N, 3, &bias));
    TRY(small_block(n, p->type, M * N, 4, &residual));
    *args = (matmul_args){.out = out,
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
                          .out_type = p->out_type};
    return stream_sync(n->compute);
}

/* The product is issued while the stream waits at a gate. The host goes on, allocates memory and
 * fills it. What the product freed too early is overwritten before it runs. */
static fsdp_status one_product(npu *n, const product *p)
{
    matmul_args args;
    void *churn;
    unsigned char got[M * N * sizeof(float)];
    TRY(product_args(n, p, &args));
    TRY(gate_close(n->g, n->compute));
    TRY(n->backend->fast()->matmul(n->compute, &args));
    for (int i = 0; i < 4; i++) {
        TRY(device_alloc(n->compute, MEM_OTHER, (size_t)4096 << i, "what follows", &churn));
        device_free(n->compute, churn);
    }
    TRY(grade_fetch(n->compute, args.out, M * N * dtype_bytes(p->out_type), got));
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

/* The device memory that a call has allocated, and the live descriptions and executors of aclnn
 * when it was allocated and freed. The second phase consumes an executor. */
typedef struct taken {
    long (*live)(void);
    int n_blocks;
    size_t bytes; /* of the last block */
    mem_category category;
    const void *block;
    long n_when_taken, n_when_given_back; /* -1: not yet */
} taken;

static uint64_t see_taken(void *self, const device_act *act)
{
    taken *t = self;
    if (act->kind == ACT_ALLOC)
        *t = (taken){t->live, t->n_blocks + 1, act->bytes, act->category, act->dst, t->live(), -1};
    if (act->kind == ACT_FREE && act->dst == t->block)
        t->n_when_given_back = t->live();
    return 0;
}

static fsdp_status expect_workspace(const taken *t, size_t asked_bytes)
{
    if (asked_bytes == 0)
        return EXPECT(t->n_blocks == 0, "a workspace of 0 bytes is NULL",
                      "execute, of an operator that asks for no workspace: took %d blocks of "
                      "device memory, the last of %zu bytes, expected none",
                      t->n_blocks, t->bytes);
    TRY(EXPECT(t->n_blocks == 1 && t->bytes == asked_bytes && t->category == MEM_OTHER,
               "device_alloc(c->s, MEM_OTHER, c->workspace_bytes, label, &workspace)",
               "execute, of an operator that asks for %zu bytes of workspace: took %d blocks, "
               "the last of %zu bytes of '%s', expected one, of 'other'",
               asked_bytes, t->n_blocks, t->bytes, mem_category_name(t->category)));
    TRY(EXPECT(t->n_when_given_back >= 0, "device_alloc and device_free, on c->s",
               "execute: the workspace was not given back"));
    return EXPECT(
        t->n_when_given_back < t->n_when_taken, "device_free comes after run()",
        "execute: the workspace was given back before the second phase was called, expected "
        "after it: another stream may get the block while the operator runs");
}

/* Cast bf16 values at the end of their block of memory to fp32. asked_bytes: the workspace. */
static fsdp_status last_elements(npu *n, void (*ask)(size_t), size_t asked_bytes)
{
    enum { ALL = 2048, ELEMS = 13 }; /* kept.c does not pad a block of 4096 bytes */
    uint16_t host[ALL];
    float got[ELEMS], want[ELEMS];
    void *in, *out;
    taken t = {.n_when_given_back = -1};
    TRY(npu_function("sim_aclnn_live", &t.live));
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

/* Attention's mask has a byte per element and is at the end of a block of 8192 bytes. All visible
 * positions have the same weight, so the mean of 0, 1 ... t is t/2. A weight is rounded once, its
 * product once, and the sum up to T times: (T + 2) 2^-24, relative. */
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
    void (*ask)(size_t);
    if (!n->is_sim)
        return FSDP_OK; /* CANN cannot be told what to ask for */
    TRY(npu_function("sim_aclnn_workspace", &ask));
    for (size_t i = 0; i < sizeof asked_bytes / sizeof *asked_bytes; i++)
        TRY(last_elements(n, ask, asked_bytes[i]));
    return mask_of_bytes(n);
}

/* A product in which one CANN call fails. The status says so, with CANN's words unless the error is
 * FSDP_ENOMEM. No description, executor or workspace is left. */
static fsdp_status failed_product(npu *n, const char *call, fsdp_status want)
{
    long (*live)(void);
    matmul_args args;
    TRY(npu_function("sim_aclnn_live", &live));
    TRY(product_args(n, &PRODUCTS[0], &args));
    const size_t blocks = ledger_read(device_ledger(n->dev)).live_blocks;
    const long descriptions = live();
    npu_break(call);
    const fsdp_status status = n->backend->fast()->matmul(n->compute, &args);
    npu_break(NULL);
    if (want == FSDP_ENOMEM)
        TRY(expect_status("a product without memory for its workspace", status, want));
    else
        TRY(npu_said(call, status, want));
    TRY(expect_int(WHAT("descriptions and executors left when %s fails", call),
                   live() - descriptions, 0));
    (void)stream_sync(n->compute);
    return expect_size(WHAT("blocks of memory left when %s fails: the workspace", call),
                       ledger_read(device_ledger(n->dev)).live_blocks - blocks, 0);
}

static fsdp_status failed_products(npu *n)
{
    if (!n->is_sim)
        return FSDP_OK; /* a real NPU's calls do not fail on demand */
    TRY(failed_product(n, "aclnnMmGetWorkspaceSize", FSDP_EDEVICE));
    TRY(failed_product(n, "aclnnMm", FSDP_EDEVICE));
    return failed_product(n, "aclrtMalloc", FSDP_ENOMEM);
}

fsdp_status task_6_5(grade *g)
{
    TRY(npu_run(g, products));
    TRY(npu_run(g, views_and_workspaces));
    return npu_run(g, failed_products);
}

/* ---- 6.6 ------------------------------------------------------------------------------------- */

enum { SEQ_LEN = 16 };

/* 12 sequences a step on any number of ranks: 12 = W * b * accumulation, b a power of two. */
static run_config small_config(int world_size, const ops *o, int steps)
{
    static const size_t batch[] = {0, 4, 2, 4, 1};
    FSDP_ASSERT(world_size <= 4);
    return (run_config){.fsdp = true,
                        .prefetch = {.mode = PREFETCH_BOTH, .limit = 2},
                        .model = GPT2_CONFIG(2, 2, 32, 61, SEQ_LEN),
                        .ops = o,
                        .mode = GRAD_ACC_CANONICAL,
                        .batch = batch[world_size],
                        .seq_len = SEQ_LEN,
                        .corpus_tokens = 1000,
                        .grad_accum = 12 / world_size / (int)batch[world_size],
                        .steps = steps,
                        .lr = 1e-3,
                        .clip_norm = 1.0f,
                        .seed = 3};
}

/* The runs that a test compares, and a group with this rank alone. */
typedef struct runs {
    run_result one, many, other;
    comm *alone;
} runs;

/* Train and compare on a group of all NPUs, then free the runs. */
static fsdp_status with_runs(npu *n, fsdp_status (*compare)(npu *n, runs *r))
{
    runs r = {0};
    TRY(npu_comm(n));
    const fsdp_status status = compare(n, &r);
    const fsdp_error_info why = *fsdp_error_get();
    comm_close(r.alone);
    run_result_free(&r.one);
    run_result_free(&r.many);
    run_result_free(&r.other);
    fsdp_error_set(&why);
    return status;
}

/* AdamW with clipping has the bits of one rank. */
static fsdp_status same_bits(npu *n, runs *r)
{
    const run_config many = small_config(n->g->world_size, n->backend->fast(), 2);
    const run_config one = small_config(1, n->backend->fast(), 2);
    TRY(run_training(n->dev, n->comm, &many, &r->many));
    TRY(comm_range(n->comm, n->g->rank, 1, 1, &r->alone));
    TRY(run_training(n->dev, r->alone, &one, &r->one));
    return expect_same_run("W ranks against one", &r->many, &r->one, 2);
}

static fsdp_status trains_alike(npu *n)
{
    return with_runs(n, same_bits);
}

/* With this lr one step of SGD leaves exactly -lr * gradient, because the weights are below half an
 * ulp of it. */
static const float GRADIENT_LR = 0x1p100f;

/* |a - b| / |b| in the 2-norm. */
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

/* Libraries that compute in fp32 and add in different orders differ by rounding alone. How far
 * rounding carries depends on the model; the difference between the CPU's two tables measures it.
 * Eight times that is allowed, and at least 2^-16, because an accelerator's exp and tanh may err by
 * a few units in the last place (2^-24). A wrong factor, mask or order is off by 2^-5 or more. */
static fsdp_status expect_near(const run_result *got, const run_result *portable,
                               const run_result *fast)
{
    double allowed = 8 * distance(fast->params, portable->params, portable->param_elems);
    double off = distance(got->params, portable->params, portable->param_elems);
    double got_loss = (double)got->loss[0], loss = (double)portable->loss[0];
    allowed = fmax(allowed, 0x1p-16);
    TRY(EXPECT(off <= allowed, "",
               "the gradient, NPU against CPU: off by %.3g of its length, allowed %.3g", off,
               allowed));
    return EXPECT(fabs(got_loss - loss) <= loss * allowed, "",
                  "the loss, NPU against CPU: got %.9g, expected %.9g", got_loss, loss);
}

static fsdp_status near_the_tables(npu *n, runs *r)
{
    run_config c = gradient_config(n->g->world_size, n->backend->fast());
    TRY(run_training(n->dev, n->comm, &c, &r->many));
    TRY(comm_range(n->g->comm, n->g->rank, 1, 1, &r->alone));
    c = gradient_config(1, ops_cpu_portable());
    c.fsdp = false;
    TRY(run_training(n->g->dev, r->alone, &c, &r->one));
    c.ops = ops_cpu_fast();
    TRY(run_training(n->g->dev, r->alone, &c, &r->other));
    return n->g->rank == 0 ? expect_near(&r->many, &r->one, &r->other) : FSDP_OK;
}

static fsdp_status near_the_cpu(npu *n)
{
    return with_runs(n, near_the_tables);
}

/* HCCL's sums, which the NPU keeps and rounds (task 6.5). */
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
