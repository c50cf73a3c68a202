/* describe.c -- describe calls in messages, and compare two of them. */
#include <string.h>
#include "common/comm/transport/transport_help.h"

const char *comm_op_name(comm_op op)
{
    static const char *const name[COMM_OPS] = {"all-gather", "reduce-scatter", "all-reduce",
                                               "all-to-all", "barrier"};
    return op < COMM_OPS ? name[op] : "host call";
}

const char *comm_desc_name(const comm_desc *desc)
{
    return comm_op_name((comm_op)desc->op);
}

void comm_desc_print(const comm_desc *desc, char *text, size_t text_bytes)
{
    unsigned long long seq = desc->seq, elems = desc->elems;
    const char *name = comm_desc_name(desc);
    const char *type = dtype_name((dtype)desc->dtype);
    if (desc->op == COMM_OP_HOST)
        snprintf(text, text_bytes, "%s #%llu", desc->label, seq);
    else if (desc->op == COMM_OP_BARRIER ||
             (desc->op == COMM_OP_ALL_TO_ALL && desc->shape_hash != 0))
        snprintf(text, text_bytes, "%s #%llu '%s'", name, seq, desc->label);
    else
        snprintf(text, text_bytes, "%s #%llu '%s' of %llu %s", name, seq, desc->label, elems, type);
}

fsdp_status comm_desc_compare(const comm_team *team, const comm_desc *mine, const comm_desc *theirs,
                              int peer)
{
    char text_mine[160], text_theirs[160];
    if (memcmp(mine, theirs, sizeof *mine) == 0)
        return FSDP_OK;
    comm_desc_print(mine, text_mine, sizeof text_mine);
    comm_desc_print(theirs, text_theirs, sizeof text_theirs);
    const char *detail = "";
    if (strcmp(text_mine, text_theirs) == 0)
        detail = mine->shape_hash != theirs->shape_hash ? " (the slices differ)"
                                                        : " (the labels differ further on)";
    return fsdp_error(FSDP_EMISMATCH, "all ranks must issue the same calls in the same order",
                      "ranks disagree: rank %d called %s, rank %d called %s%s",
                      comm_world_rank(team, peer), text_theirs, comm_world_rank(team, team->rank),
                      text_mine, detail);
}

fsdp_status comm_desc_lengths(const comm_team *team, const comm_desc *desc, int peer,
                              int64_t sent_bytes, size_t expected_bytes)
{
    char call[160], sent[24] = "more";
    if (sent_bytes >= 0 && (size_t)sent_bytes == expected_bytes)
        return FSDP_OK;
    comm_desc_print(desc, call, sizeof call);
    if (sent_bytes >= 0)
        snprintf(sent, sizeof sent, "%lld", (long long)sent_bytes);
    return fsdp_error(FSDP_EMISMATCH, "all ranks must pass slice lengths that fit each other",
                      "%s: rank %d sent %s bytes, rank %d expected %zu", call,
                      comm_world_rank(team, peer), sent, comm_world_rank(team, team->rank),
                      expected_bytes);
}

fsdp_status comm_desc_timeout(const comm_team *team, const comm_desc *desc, double limit_s,
                              const char *missing)
{
    char call[160];
    comm_desc_print(desc, call, sizeof call);
    return fsdp_error(FSDP_ETIMEOUT,
                      "compare the ranks' last calls above, or with FSDP_HANG_DIR set their files, "
                      "by sort -m and diff (docs/hangs.md); FSDP_TIMEOUT_S sets the limit",
                      "rank %d waited %.1f s in %s; missing data of ranks: %s",
                      comm_world_rank(team, team->rank), limit_s, call, missing);
}

void comm_rank_add(char *list, size_t list_bytes, int rank)
{
    size_t used = strlen(list);
    snprintf(list + used, list_bytes - used, "%s%d", used > 0 ? " " : "", rank);
}
