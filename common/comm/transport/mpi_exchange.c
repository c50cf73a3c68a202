/* mpi_exchange.c -- one exchange in MPI: post its messages, test them, compare descriptors.
 *
 *   mpi_exchange_post -> mpi_exchange_test ... until all is done       (progress thread only)
 *
 * An exchange is a set of MPI_Isend / MPI_Irecv between every pair of ranks that has data to move,
 * cut into chunks that fit an int. The tag is made from the call's number, so operations may be
 * posted in any order.
 *
 * Disagreement. Each call sends its descriptor to the next rank, which compares it with its own. An
 * error about data of a wrong length (MPI_ERR_TRUNCATE, or a short message) is held back for a
 * moment, because the descriptor gives a better explanation. */
#include "common/comm/transport/mpi_impl.h"
#include "common/base/recycle.h"

/* MPI guarantees tags up to 32767: 8191 calls of a group can be told apart, with four tags each. */
enum { TAG_SEQS = 8191, TAG_DATA = 0 /* + phase */, TAG_DESC = 2 };
enum { REQ_DESC_OUT = 0, REQ_DESC_IN = 1, REQ_FIRST_RECEIVE = 2 };

static const double HELD_ERROR_S = 1.0; /* how long to wait for a descriptor after wrong data */

fsdp_status mpi_explain(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return fsdp_error(FSDP_ECOMM, "see the other ranks' messages; a rank may have died", "%s: %s",
                      what, text);
}

/* ---- posting ------------------------------------------------------------------------------- */

static int tag_of(const comm_call *call, int kind)
{
    return (int)(call->number % TAG_SEQS) * 4 + kind;
}

static size_t chunks_of(size_t bytes)
{
    return (bytes + mpi_shared.chunk_bytes - 1) / mpi_shared.chunk_bytes;
}

static bool requests_alloc(mpi_operation *op)
{
    const comm_team *t = op->group->team;
    size_t n_receives = 0, n_sends = 0;
    for (int r = 0; r < t->size; r++) {
        if (r != t->rank) {
            n_receives += chunks_of(op->parts[r].recv_bytes);
            n_sends += chunks_of(op->parts[r].send_bytes);
        }
    }
    size_t n = REQ_FIRST_RECEIVE + n_receives + n_sends;
    op->n_receives = elems_to_int(n_receives);
    op->n_requests = elems_to_int(n);
    op->requests = recycle_get(n * sizeof *op->requests);
    op->message = recycle_get(n * sizeof *op->message);
    op->done_index = recycle_get(n * sizeof *op->done_index);
    op->done_status = recycle_get(n * sizeof *op->done_status);
    if (op->requests == NULL || op->message == NULL || op->done_index == NULL ||
        op->done_status == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        op->requests[i] = MPI_REQUEST_NULL;
    return true;
}

/* Post `bytes` from or to one peer as requests *next ...; the chunks stay in order, because in MPI
 * messages of one pair and tag do not overtake each other. */
static int message_post(mpi_operation *op, int *next, bool receive, int peer, char *at,
                        size_t bytes)
{
    int tag = tag_of(&op->call, TAG_DATA + op->call.phase);
    while (bytes > 0) {
        size_t piece = bytes < mpi_shared.chunk_bytes ? bytes : mpi_shared.chunk_bytes;
        MPI_Request *request = &op->requests[*next];
        op->message[*next] = (mpi_message){.peer = peer, .bytes = (int)piece};
        ++*next;
        int rc = receive ? MPI_Irecv(at, (int)piece, MPI_BYTE, peer, tag, op->group->comm, request)
                         : MPI_Isend(at, (int)piece, MPI_BYTE, peer, tag, op->group->comm, request);
        if (rc != MPI_SUCCESS)
            return rc;
        at += piece;
        bytes -= piece;
    }
    return MPI_SUCCESS;
}

static int desc_post(mpi_operation *op)
{
    const comm_team *t = op->group->team;
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    int tag = tag_of(&op->call, TAG_DESC);
    MPI_Comm on = op->group->comm;
    op->message[REQ_DESC_OUT] = (mpi_message){next, sizeof(comm_desc)};
    op->message[REQ_DESC_IN] = (mpi_message){previous, sizeof(comm_desc)};
    op->desc_expected = op->call.phase == 0 && t->size > 1;
    if (!op->desc_expected)
        return MPI_SUCCESS;
    int rc = MPI_Irecv(&op->desc_in, sizeof op->desc_in, MPI_BYTE, previous, tag, on,
                       &op->requests[REQ_DESC_IN]);
    if (rc == MPI_SUCCESS)
        rc = MPI_Isend(&op->call.desc, sizeof op->call.desc, MPI_BYTE, next, tag, on,
                       &op->requests[REQ_DESC_OUT]);
    return rc;
}

/* Each rank starts with its neighbour, so that not all ranks send to the same one first. */
static int data_post(mpi_operation *op)
{
    const comm_team *t = op->group->team;
    int next = REQ_FIRST_RECEIVE, rc = MPI_SUCCESS;
    for (int d = 1; d < t->size && rc == MPI_SUCCESS; d++) {
        int peer = (t->rank + t->size - d) % t->size;
        comm_part *p = &op->parts[peer];
        rc = message_post(op, &next, true, peer, p->recv, p->recv_bytes);
    }
    for (int d = 1; d < t->size && rc == MPI_SUCCESS; d++) {
        int peer = (t->rank + d) % t->size;
        comm_part *p = &op->parts[peer];
        rc = message_post(op, &next, false, peer, (char *)(uintptr_t)p->send, p->send_bytes);
    }
    return rc;
}

fsdp_status mpi_exchange_post(mpi_operation *op)
{
    if (!requests_alloc(op))
        return fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for an exchange");
    int rc = desc_post(op);
    if (rc == MPI_SUCCESS)
        rc = data_post(op);
    return rc == MPI_SUCCESS ? FSDP_OK : mpi_explain(rc, "posting a message");
}

/* ---- testing ------------------------------------------------------------------------------- */

/* A message has another length than expected (-1: it is longer). Hold the error back, because a
 * descriptor may explain it. */
static void data_hold(mpi_operation *op, int index, int got_bytes)
{
    if (op->held_since_s > 0)
        return;
    (void)comm_desc_lengths(op->group->team, &op->call.desc, op->message[index].peer, got_bytes,
                            (size_t)op->message[index].bytes);
    op->held = *fsdp_error_get();
    op->held_since_s = clock_now_s();
}

/* One request of the operation has completed. */
static fsdp_status request_done(mpi_operation *op, int index, const MPI_Status *status, int code)
{
    int error_class = MPI_SUCCESS, got_bytes = 0;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &error_class);
    bool is_data = index >= REQ_FIRST_RECEIVE && index < REQ_FIRST_RECEIVE + op->n_receives;
    if (error_class == MPI_ERR_TRUNCATE && is_data) {
        data_hold(op, index, -1);
        return FSDP_OK;
    }
    if (code != MPI_SUCCESS) {
        char what[64];
        snprintf(what, sizeof what, "message %s rank %d",
                 is_data || index == REQ_DESC_IN ? "from" : "to",
                 comm_world_rank(op->group->team, op->message[index].peer));
        return mpi_explain(code, what);
    }
    if (index == REQ_DESC_IN) {
        op->desc_expected = false;
        return comm_desc_compare(op->group->team, &op->call.desc, &op->desc_in,
                                 op->message[index].peer);
    }
    if (is_data) {
        MPI_Get_count(status, MPI_BYTE, &got_bytes);
        if (got_bytes != op->message[index].bytes)
            data_hold(op, index, got_bytes);
    }
    return FSDP_OK;
}

/* Test the operation once. *moved: a message completed. *all_done: all have. On failure this
 * thread's record says why. */
fsdp_status mpi_exchange_test(mpi_operation *op, bool *moved, bool *all_done)
{
    int n_done = 0;
    int rc = MPI_Testsome(op->n_requests, op->requests, &n_done, op->done_index, op->done_status);
    if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS) {
        int error_class = MPI_SUCCESS;
        MPI_Error_class(rc, &error_class);
        if (error_class != MPI_ERR_IN_STATUS)
            return mpi_explain(rc, "testing messages");
    }
    *all_done = n_done == MPI_UNDEFINED; /* no request is active */
    for (int i = 0; i < n_done && n_done != MPI_UNDEFINED; i++) {
        *moved = true;
        const MPI_Status *status = &op->done_status[i];
        TRY(request_done(op, op->done_index[i], status,
                         rc == MPI_SUCCESS ? MPI_SUCCESS : status->MPI_ERROR));
    }
    if (op->held_since_s > 0) {
        *all_done = false;
        if (clock_now_s() - op->held_since_s > HELD_ERROR_S)
            return fsdp_error_set(&op->held);
    }
    return FSDP_OK;
}

void mpi_exchange_missing(const mpi_operation *op, char *text, size_t text_bytes)
{
    const comm_team *t = op->group->team;
    text[0] = '\0';
    for (int r = 0; r < t->size; r++) {
        bool missing = false;
        for (int i = REQ_DESC_IN; i < REQ_FIRST_RECEIVE + op->n_receives; i++)
            missing |= op->requests[i] != MPI_REQUEST_NULL && op->message[i].peer == r;
        if (missing)
            comm_rank_add(text, text_bytes, comm_world_rank(t, r));
    }
    if (text[0] == '\0')
        snprintf(text, text_bytes, "none, but peers have not received this rank's");
}
