/* nccl.c -- fills the native_api with NCCL's calls: NCCL as the transport between GPUs.
 *
 * Communicators are blocking. A non-blocking communicator starts a thread for each call, and its
 * caller must poll until the call is on the stream. Here one thread makes all calls
 * (native_thread.c); if peers do not join its call, the thread is abandoned. Its communicator
 * cannot be aborted then, because an abort would free memory that the call uses: NCCL allows an
 * abort only while no thread is in a call. An abort removes a communicator's kernels from the GPU,
 * where they would otherwise stay forever.
 *
 * [NCCL "User's Guide": ncclCommInitRankConfig, ncclCommSplit, ncclCommAbort, "Fault Tolerance",
 * "Thread Safety", "Using multiple NCCL communicators concurrently", NCCL_COMM_BLOCKING] */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include "common/accel/native.h"
#include "common/cuda/cuda_impl.h"

enum {
    OLDEST_NCCL = NCCL_VERSION(2, 18, 0),
    ORDERS_CALLS = NCCL_VERSION(2, 26, 0),
    SHARES_GPUS = NCCL_VERSION(2, 30, 0) /* experimental */
};

/* The header of NCCL 2.18 defines ncclBfloat16 only for nvcc. Its number has not changed since. */
#define NCCL_BFLOAT16 ((ncclDataType_t)9)

/* FSDP_OK, or FSDP_ECOMM with NCCL's message. */
static fsdp_status nccl_status(ncclComm_t handle, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess)
        return FSDP_OK;
    return fsdp_error(FSDP_ECOMM, "NCCL_DEBUG=WARN in the environment makes NCCL say more",
                      "NCCL: %s: %s (%s)", what, ncclGetErrorString(result),
                      ncclGetLastError(handle));
}

/* ---- communicators --------------------------------------------------------------------------- */

/* NCCL reads its environment when the first communicator is made. NCCL_COMM_BLOCKING in the
 * environment overrides config_own's `blocking`. */
static fsdp_status nccl_prepare(bool *chains)
{
    int version;
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    TRY(nccl_status(NULL, ncclGetVersion(&version), "ncclGetVersion"));
    *chains = version < ORDERS_CALLS || strcmp(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1") != 0;
    return FSDP_OK;
}

static fsdp_status nccl_describe(device *d, native_row *row)
{
    struct cudaDeviceProp prop;
    TRY(cuda_status(cudaGetDeviceProperties(&prop, d->config.index), "cudaGetDeviceProperties"));
    TRY(nccl_status(NULL, ncclGetVersion(&row->version), "ncclGetVersion"));
    const char *wanted = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    row->shares = row->version >= SHARES_GPUS && wanted != NULL && strcmp(wanted, "1") == 0;
    row->index = d->config.index;
    memcpy(row->unit, &prop.uuid, sizeof prop.uuid);
    snprintf(row->model, sizeof row->model, "%.95s", prop.name);
    return FSDP_OK;
}

static bool nccl_too_old(const native_row *row, char *words, size_t bytes)
{
    snprintf(words, bytes, "NCCL %d.%d; it takes 2.18", row->version / 10000,
             row->version / 100 % 100);
    return row->version < OLDEST_NCCL;
}

static fsdp_status nccl_id_make(void *id)
{
    return nccl_status(NULL, ncclGetUniqueId(id), "ncclGetUniqueId");
}

static ncclConfig_t config_own(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return config;
}

static fsdp_status nccl_start(device *d, const comm_team *team, const void *id, void **handle)
{
    ncclConfig_t config = config_own();
    ncclUniqueId unique;
    TRY(cuda_status(cudaSetDevice(d->config.index), "cudaSetDevice"));
    memcpy(&unique, id, sizeof unique);
    ncclComm_t made = NULL;
    ncclResult_t result = ncclCommInitRankConfig(&made, team->size, unique, team->rank, &config);
    *handle = made;
    return nccl_status(NULL, result, "ncclCommInitRankConfig");
}

static fsdp_status nccl_split(void *parent, int color, int rank, void **child)
{
    ncclConfig_t config = config_own();
    ncclComm_t made = NULL;
    ncclResult_t result =
        ncclCommSplit(parent, rank >= 0 ? color : NCCL_SPLIT_NOCOLOR, 0, &made, &config);
    *child = made;
    return nccl_status(parent, result, "ncclCommSplit");
}

static fsdp_status nccl_look(void *handle, const char *what)
{
    ncclResult_t state = ncclSuccess;
    TRY(nccl_status(handle, ncclCommGetAsyncError(handle, &state), what));
    return nccl_status(handle, state, what);
}

static void nccl_abort(void *handle)
{
    (void)ncclCommAbort(handle);
}

static void nccl_destroy(void *handle)
{
    if (ncclCommFinalize(handle) == ncclSuccess)
        (void)ncclCommDestroy(handle);
    else
        nccl_abort(handle);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static fsdp_status nccl_exchange(void *handle, const native_call *c, void *queue)
{
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < c->team->size && result == ncclSuccess; r++) {
        const comm_part *part = &c->parts[r];
        if (r != c->team->rank && part->send_bytes > 0)
            result = ncclSend(part->send, part->send_bytes, ncclUint8, r, handle, queue);
        if (r != c->team->rank && part->recv_bytes > 0 && result == ncclSuccess)
            result = ncclRecv(part->recv, part->recv_bytes, ncclUint8, r, handle, queue);
    }
    ncclResult_t ended = ncclGroupEnd();
    return nccl_status(handle, result == ncclSuccess ? ended : result, c->what);
}

static fsdp_status nccl_all_gather(void *handle, const native_call *c, void *queue)
{
    return nccl_status(handle, ncclAllGather(c->from, c->to, c->elems, ncclUint8, handle, queue),
                       c->what);
}

static fsdp_status nccl_reduce_scatter(void *handle, const native_call *c, void *queue)
{
    ncclDataType_t type = c->type == DTYPE_BF16 ? NCCL_BFLOAT16 : ncclFloat32;
    return nccl_status(
        handle, ncclReduceScatter(c->from, c->to, c->elems, type, ncclSum, handle, queue), c->what);
}

static fsdp_status nccl_all_reduce(void *handle, const native_call *c, void *queue)
{
    return nccl_status(handle,
                       ncclAllReduce(c->from, c->to, c->elems, ncclInt64, ncclSum, handle, queue),
                       c->what);
}

/* ---- the transport --------------------------------------------------------------------------- */

static const native_api NCCL = {.name = "nccl",
                                .library = "NCCL",
                                .to_share =
                                    ", or 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks",
                                .start_name = "ncclCommInitRankConfig",
                                .split_name = "ncclCommSplit",
                                .end_name = "ncclCommFinalize",
                                .id_bytes = sizeof(ncclUniqueId),
                                .prepare = nccl_prepare,
                                .describe = nccl_describe,
                                .too_old = nccl_too_old,
                                .id_make = nccl_id_make,
                                .start = nccl_start,
                                .split = nccl_split,
                                .look = nccl_look,
                                .exchange = nccl_exchange,
                                .all_gather = nccl_all_gather,
                                .reduce_scatter = nccl_reduce_scatter,
                                .all_reduce = nccl_all_reduce,
                                .destroy = nccl_destroy,
                                .abort = nccl_abort};

static fsdp_status nccl_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    return native_open_over(&NCCL, &nccl_transport, below, out, why_not);
}

const comm_transport nccl_transport = {
    .name = "nccl", .open_over = nccl_open_over, NATIVE_TRANSPORT};
