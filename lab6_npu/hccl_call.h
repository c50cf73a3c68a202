/* hccl_call.h -- the calls of HCCL that hccl.c makes, for C: HCCL's headers are C++.
 *
 * Each function is one call of HCCL, with its arguments in HCCL's order, and returns an HcclResult:
 * 0 is success. `hccl` is a communicator (HcclComm), `queue` a stream (aclrtStream).
 * [CANN "HCCL API Reference"] */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

enum {
    HCCL_CALL_ID_BYTES = 4108, /* size of an HcclRootInfo */
    HCCL_CALL_INT8 = 0         /* an HcclDataType; npu_hccl_type gives the others */
};
/* HcclReduceOp */
enum { HCCL_CALL_SUM, HCCL_CALL_PROD, HCCL_CALL_MAX, HCCL_CALL_MIN };
/* The values of HcclResult that have their own hint. */
enum { HCCL_CALL_E_NOT_SUPPORT = 5, HCCL_CALL_E_TIMEOUT = 9, HCCL_CALL_E_NETWORK = 19 };

/* One message of hccl_call_batch_send_recv. */
typedef struct hccl_message {
    void *buf;
    uint64_t bytes;
    int peer;
    bool sends; /* else it receives */
} hccl_message;

/* hccl_call_error_string -- HcclGetErrorString. */
const char *hccl_call_error_string(int result);
/* hccl_call_get_root_info -- HcclGetRootInfo: id [HCCL_CALL_ID_BYTES].
 * hccl_call_comm_init_root_info -- HcclCommInitRootInfo: blocks until all n_ranks have called. */
int hccl_call_get_root_info(void *id);
int hccl_call_comm_init_root_info(int n_ranks, const void *id, int rank, void **hccl);
/* hccl_call_get_comm_async_error -- HcclGetCommAsyncError: *error is an HcclResult too. */
int hccl_call_get_comm_async_error(void *hccl, int *error);
/* hccl_call_comm_destroy -- HcclCommDestroy. */
int hccl_call_comm_destroy(void *hccl);

/* hccl_call_all_gather -- HcclAllGather: send_count elements from each rank to all; recv is W
 * times as long as send. */
int hccl_call_all_gather(const void *send, void *recv, uint64_t send_count, int type, void *hccl,
                         void *queue);
/* hccl_call_reduce_scatter -- HcclReduceScatter: recv_count elements to each rank; send is W times
 * as long as recv. */
int hccl_call_reduce_scatter(const void *send, void *recv, uint64_t recv_count, int type, int op,
                             void *hccl, void *queue);
/* hccl_call_all_reduce -- HcclAllReduce: count elements from and to each rank. */
int hccl_call_all_reduce(const void *send, void *recv, uint64_t count, int type, int op, void *hccl,
                         void *queue);
/* hccl_call_batch_send_recv -- HcclBatchSendRecv. */
int hccl_call_batch_send_recv(const hccl_message *messages, int n, void *hccl, void *queue);

EXTERN_C_END
