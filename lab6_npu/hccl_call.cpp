/* hccl_call.cpp -- see hccl_call.h. */
#include "lab6_npu/hccl_call.h"
#include <hccl/hccl.h>
#include <hccl/hccl_types.h>
#include <stdlib.h>

static_assert(sizeof(HcclRootInfo) == HCCL_CALL_ID_BYTES, "the id");
static_assert(int{HCCL_DATA_TYPE_INT8} == HCCL_CALL_INT8, "HcclDataType");
static_assert(int{HCCL_REDUCE_SUM} == HCCL_CALL_SUM && int{HCCL_REDUCE_PROD} == HCCL_CALL_PROD &&
                  int{HCCL_REDUCE_MAX} == HCCL_CALL_MAX && int{HCCL_REDUCE_MIN} == HCCL_CALL_MIN,
              "HcclReduceOp");
static_assert(int{HCCL_SUCCESS} == 0 && int{HCCL_E_NOT_SUPPORT} == HCCL_CALL_E_NOT_SUPPORT &&
                  int{HCCL_E_TIMEOUT} == HCCL_CALL_E_TIMEOUT &&
                  int{HCCL_E_NETWORK} == HCCL_CALL_E_NETWORK,
              "HcclResult");

const char *hccl_call_error_string(int result)
{
    return HcclGetErrorString(static_cast<HcclResult>(result));
}

/* ---- communicators --------------------------------------------------------------------------- */

int hccl_call_get_root_info(void *id)
{
    return HcclGetRootInfo(static_cast<HcclRootInfo *>(id));
}

int hccl_call_comm_init_root_info(int n_ranks, const void *id, int rank, void **hccl)
{
    return HcclCommInitRootInfo(static_cast<uint32_t>(n_ranks),
                                static_cast<const HcclRootInfo *>(id), static_cast<uint32_t>(rank),
                                hccl);
}

int hccl_call_get_comm_async_error(void *hccl, int *error)
{
    HcclResult found = HCCL_SUCCESS;
    const HcclResult result = HcclGetCommAsyncError(hccl, &found);
    *error = found;
    return result;
}

int hccl_call_comm_destroy(void *hccl)
{
    return HcclCommDestroy(hccl);
}

/* ---- collectives ----------------------------------------------------------------------------- */

int hccl_call_all_gather(const void *send, void *recv, uint64_t send_count, int type, void *hccl,
                         void *queue)
{
    return HcclAllGather(const_cast<void *>(send), recv, send_count,
                         static_cast<HcclDataType>(type), hccl, queue);
}

int hccl_call_reduce_scatter(const void *send, void *recv, uint64_t recv_count, int type, int op,
                             void *hccl, void *queue)
{
    return HcclReduceScatter(const_cast<void *>(send), recv, recv_count,
                             static_cast<HcclDataType>(type), static_cast<HcclReduceOp>(op), hccl,
                             queue);
}

int hccl_call_all_reduce(const void *send, void *recv, uint64_t count, int type, int op, void *hccl,
                         void *queue)
{
    return HcclAllReduce(const_cast<void *>(send), recv, count, static_cast<HcclDataType>(type),
                         static_cast<HcclReduceOp>(op), hccl, queue);
}

int hccl_call_batch_send_recv(const hccl_message *messages, int n, void *hccl, void *queue)
{
    HcclSendRecvItem *items =
        static_cast<HcclSendRecvItem *>(calloc(static_cast<size_t>(n), sizeof *items));
    if (items == nullptr)
        return HCCL_E_MEMORY;
    for (int i = 0; i < n; i++) {
        const hccl_message *m = &messages[i];
        items[i] = {m->sends ? HCCL_SEND : HCCL_RECV, m->buf, m->bytes, HCCL_DATA_TYPE_INT8,
                    static_cast<uint32_t>(m->peer)};
    }
    const HcclResult result = HcclBatchSendRecv(items, static_cast<uint32_t>(n), hccl, queue);
    free(items);
    return result;
}
