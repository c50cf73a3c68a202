/* hccl.c -- fills the native_api with HCCL's calls: HCCL as the transport between NPUs. Task 6.4.
 *
 *   rank 0: hccl_id_make -> the id goes to all ranks over the hosts -> hccl_start
 *   -> hccl_all_gather, hccl_reduce_scatter ... on streams -> hccl_destroy
 *
 * Differences from NCCL:
 *   - The call that makes a communicator takes the handle last, and uses the calling thread's
 *     context.
 *   - HCCL does not order calls on different streams, of one communicator or of several. If
 *     hccl_prepare sets *chains, native_call.c chains the calls by events.
 *   - There is no average, only a sum. The caller divides once, at the end of the step.
 *   - There is no abort. After a failure, communicators are leaked and the process ends.
 *   - There is no split. Each part of a group makes a communicator with its own id.
 * Bytes are sent as INT8, so the number of elements is the number of bytes.
 *
 * [CANN "HCCL API Reference": HcclGetRootInfo, HcclCommInitRootInfo, HcclAllGather,
 * HcclReduceScatter, HcclBatchSendRecv, HcclGetCommAsyncError; HCCL_DETERMINISTIC] */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "acl/acl.h"
#include "common/accel/accel_impl.h"
#include "common/accel/native.h"
#include "lab6_npu/hccl_call.h"
#include "lab6_npu/npu_impl.h"

/* A communicator. */
typedef struct hccl_comm {
    void *hccl; /* HCCL's handle */
    void *context;
    int n_ranks, rank;
    const char *id;
    hccl_message *messages; /* [2*n_ranks] scratch of an exchange */
} hccl_comm;

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *hint_for(int result)
{
    switch (result) {
    case HCCL_CALL_E_TIMEOUT:
        return "see the other ranks' last lines; HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT are "
               "HCCL's limits";
    case HCCL_CALL_E_NETWORK:
        return "HCCL_SOCKET_IFNAME names the network interface that HCCL takes";
    case HCCL_CALL_E_NOT_SUPPORT:
        return "use --reduction canonical, whose sums are not HCCL's, or another --reduce-dtype";
    default:
        return "ASCEND_SLOG_PRINT_TO_STDOUT=1 ASCEND_GLOBAL_LOG_LEVEL=1 in the environment make "
               "CANN say more";
    }
}

/* FSDP_OK for 0; else FSDP_ECOMM with the messages of HCCL and of ACL, the runtime below it. */
static fsdp_status hccl_status(int result, const char *what)
{
    if (result == 0)
        return FSDP_OK;
    const char *more = aclGetRecentErrMsg();
    return fsdp_error(FSDP_ECOMM, hint_for(result), "HCCL: %s: %s (%s)", what,
                      hccl_call_error_string(result),
                      more != NULL && *more != '\0' ? more : "no message from ACL");
}

/* ---- before the first communicator ----------------------------------------------------------- */

/* HCCL reads its environment when the first communicator is made. With GRAD_ACC_FAST, HCCL computes
 * the sums; they have the same bits in each run only with HCCL_DETERMINISTIC. GRAD_ACC_CANONICAL
 * does not need the variable, because there HCCL only moves bytes and adds integers. */
static fsdp_status hccl_prepare(bool *chains)
{
    /* SOLUTION BEGIN 6.4 */
    setenv("HCCL_DETERMINISTIC", "true", 0);
    *chains = true;
    return FSDP_OK;
    /* SOLUTION END 6.4 */
}

/* The number of a device on its host; index: its number in this process. With
 * ASCEND_RT_VISIBLE_DEVICES="4,5", device 4 of the host has index 0. */
static int number_on_host(int index)
{
    const char *at = getenv("ASCEND_RT_VISIBLE_DEVICES");
    for (int i = 0; at != NULL; i++) {
        char *end;
        const long number = strtol(at, &end, 10);
        if (end == at)
            break;
        if (i == index)
            return (int)number;
        at = *end == ',' ? end + 1 : NULL;
    }
    return index;
}

/* ACL has no device name that is unique among all hosts. So the name consists of the host's boot id
 * and the device's number. */
static fsdp_status hccl_describe(device *d, native_row *row)
{
    char host[48] = "";
    const char *model = aclrtGetSocName();
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL || fgets(host, 37, file) == NULL)
        (void)gethostname(host, sizeof host - 1);
    if (file != NULL)
        fclose(file);
    row->index = d->config.index;
    snprintf(row->unit, sizeof row->unit, "%s/%d", host, number_on_host(row->index));
    snprintf(row->model, sizeof row->model, "%.95s", model != NULL ? model : "an unknown NPU");
    return FSDP_OK;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* Called on rank 0. id [HCCL_CALL_ID_BYTES] */
static fsdp_status hccl_id_make(void *id)
{
    /* SOLUTION BEGIN 6.4 */
    return hccl_status(hccl_call_get_root_info(id), "HcclGetRootInfo");
    /* SOLUTION END 6.4 */
}

/* Make c->hccl from c->id, c->n_ranks and c->rank. All ranks call it at the same time, each in the
 * thread that makes the group's calls. c->context is the context of the issuing thread. */
static fsdp_status bootstrap(hccl_comm *c)
{
    /* SOLUTION BEGIN 6.4 */
    TRY(npu_status(aclrtSetCurrentContext(c->context), "aclrtSetCurrentContext"));
    return hccl_status(hccl_call_comm_init_root_info(c->n_ranks, c->id, c->rank, &c->hccl),
                       "HcclCommInitRootInfo");
    /* SOLUTION END 6.4 */
}

static void comm_free(hccl_comm *c)
{
    free(c->messages);
    free(c);
}

static fsdp_status hccl_start(device *d, const comm_team *team, const void *id, void **handle)
{
    hccl_comm *c = calloc(1, sizeof *c);
    hccl_message *messages = calloc(2 * (size_t)team->size, sizeof *messages);
    if (c == NULL || messages == NULL) {
        free(c);
        free(messages);
        return fsdp_error(FSDP_ENOMEM, "", "hccl: no memory for a group of %d ranks", team->size);
    }
    *c = (hccl_comm){.context = npu_own_of(d)->context,
                     .n_ranks = team->size,
                     .rank = team->rank,
                     .id = id,
                     .messages = messages};
    const fsdp_status status = bootstrap(c);
    if (status == FSDP_OK)
        *handle = c;
    else
        comm_free(c);
    return status;
}

static fsdp_status hccl_look(void *handle, const char *what)
{
    const hccl_comm *c = handle;
    int error = 0;
    TRY(hccl_status(hccl_call_get_comm_async_error(c->hccl, &error), "HcclGetCommAsyncError"));
    return hccl_status(error, what);
}

static void hccl_destroy(void *handle)
{
    hccl_comm *c = handle;
    (void)hccl_call_comm_destroy(c->hccl);
    comm_free(c);
}

/* Leaks HCCL's communicator: HcclCommDestroy might wait for calls that peers will not join. */
static void hccl_abort(void *handle)
{
    comm_free(handle);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Send each rank's slice of c->elems bytes to all ranks; this rank's slice is c->from. */
static fsdp_status hccl_all_gather(void *handle, const native_call *c, void *queue)
{
    const hccl_comm *g = handle;
    /* SOLUTION BEGIN 6.4 */
    return hccl_status(
        hccl_call_all_gather(c->from, c->to, c->elems, HCCL_CALL_INT8, g->hccl, queue), c->what);
    /* SOLUTION END 6.4 */
}

/* Rank r gets in c->to the sum over all ranks of slice r of c->from: c->elems of c->type. */
static fsdp_status hccl_reduce_scatter(void *handle, const native_call *c, void *queue)
{
    const hccl_comm *g = handle;
    /* SOLUTION BEGIN 6.4 */
    return hccl_status(hccl_call_reduce_scatter(c->from, c->to, c->elems, npu_hccl_type(c->type),
                                                HCCL_CALL_SUM, g->hccl, queue),
                       c->what);
    /* SOLUTION END 6.4 */
}

static fsdp_status hccl_all_reduce(void *handle, const native_call *c, void *queue)
{
    const hccl_comm *g = handle;
    const int type = npu_hccl_type(c->type), sum = HCCL_CALL_SUM;
    return hccl_status(hccl_call_all_reduce(c->from, c->to, c->elems, type, sum, g->hccl, queue),
                       c->what);
}

/* A rank may send nothing to some ranks, or to all. HcclAlltoAllV needs all ranks in each call, and
 * the counts would have to be exchanged first. Each HcclSend and HcclRecv waits for the peer, so
 * all ranks would have to agree on an order of calls. HcclBatchSendRecv takes any messages,
 * in any order, at any address. */
static fsdp_status hccl_exchange(void *handle, const native_call *c, void *queue)
{
    const hccl_comm *g = handle;
    int n = 0;
    for (int r = 0; r < c->team->size; r++) {
        const comm_part *part = &c->parts[r];
        void *send = (void *)(uintptr_t)part->send;
        if (r != c->team->rank && part->send_bytes > 0)
            g->messages[n++] = (hccl_message){send, part->send_bytes, r, true};
        if (r != c->team->rank && part->recv_bytes > 0)
            g->messages[n++] = (hccl_message){part->recv, part->recv_bytes, r, false};
    }
    if (n == 0)
        return FSDP_OK;
    return hccl_status(hccl_call_batch_send_recv(g->messages, n, g->hccl, queue), c->what);
}

/* ---- the transport --------------------------------------------------------------------------- */

const native_api hccl_api = {.name = "hccl",
                             .library = "HCCL",
                             .to_share = "",
                             .start_name = "HcclCommInitRootInfo",
                             .end_name = "HcclCommDestroy",
                             .id_bytes = HCCL_CALL_ID_BYTES,
                             .prepare = hccl_prepare,
                             .describe = hccl_describe,
                             .id_make = hccl_id_make,
                             .start = hccl_start,
                             .look = hccl_look,
                             .exchange = hccl_exchange,
                             .all_gather = hccl_all_gather,
                             .reduce_scatter = hccl_reduce_scatter,
                             .all_reduce = hccl_all_reduce,
                             .destroy = hccl_destroy,
                             .abort = hccl_abort};

static fsdp_status hccl_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    return native_open_over(&hccl_api, &hccl_transport, below, out, why_not);
}

const comm_transport hccl_transport = {
    .name = "hccl", .open_over = hccl_open_over, NATIVE_TRANSPORT};
