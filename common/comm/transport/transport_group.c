/* transport_group.c -- groups of any transport: making and closing them, numbering their calls, and
 * host calls over one group. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/comm/transport/transport_help.h"

static const double CLOSE_PATIENCE_S = 10; /* since a task last ended */
static const double LINGER_S = 1;          /* between a failure and the end of the process */

/* ---- teams ---------------------------------------------------------------------------------- */

void comm_team_fill(comm_team *team, int rank, int size, int local_rank, int local_size)
{
    team->rank = rank;
    team->size = size;
    team->local_rank = local_rank;
    team->local_size = local_size;
    team->first = 0;
    team->step = 1;
    team->run = team->outer_step = 0;
}

void comm_team_part(const comm_team *of, const comm_ranks *x, comm_team *out)
{
    const int outer = x->n_outer > 1 ? (of->rank - x->first) / x->outer_step : 0;
    *out = *of;
    out->rank = outer * x->n + (of->rank - x->first - outer * x->outer_step) / x->step;
    out->size = x->n * x->n_outer;
    out->first = comm_world_rank(of, x->first);
    if (out->size == of->size) /* all of them, whatever their form is */
        return;
    out->step = x->n > 1 ? comm_world_rank(of, x->first + x->step) - out->first : 1;
    out->run = x->n_outer > 1 ? x->n : 0;
    out->outer_step =
        x->n_outer > 1 ? comm_world_rank(of, x->first + x->outer_step) - out->first : 0;
}

int comm_team_find(const comm_team *team, int world_rank)
{
    const int beyond = world_rank - team->first;
    const int outer = team->run > 0 ? beyond / team->outer_step : 0;
    const int found = outer * team->run + (beyond - outer * team->outer_step) / team->step;
    FSDP_ASSERT(found >= 0 && found < team->size && comm_world_rank(team, found) == world_rank);
    return found;
}

/* ---- groups --------------------------------------------------------------------------------- */

fsdp_status transport_group_new(const comm_transport *table, const comm_team *team,
                                size_t state_bytes, transport_group **out)
{
    transport_group *g = calloc(1, sizeof *g + (size_t)team->size * sizeof g->parts[0]);
    void *state = state_bytes > 0 ? calloc(1, state_bytes) : NULL;
    if (g == NULL || (state == NULL && state_bytes > 0)) {
        free(g);
        free(state);
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a group of %d ranks", table->name,
                          team->size);
    }
    g->state = state;
    g->table = table;
    g->team = team;
    g->fast_run = 1;
    *out = g;
    return FSDP_OK;
}

void transport_group_close(transport_group *g)
{
    bool goes_on = true, stays = false;
    while (g != NULL) {
        transport_group *below = g->below;
        goes_on = goes_on && (g->table->close == NULL || g->table->close(g));
        /* a stream's task may still use the group, and through it the groups below */
        stays = stays || atomic_load(&g->n_unfinished) > 0;
        if (!stays)
            free(g);
        g = below;
    }
}

transport_group *transport_control(transport_group *g)
{
    while (!g->table->carries_host)
        g = g->below;
    return g;
}

comm_part *transport_parts(transport_group *g)
{
    memset(g->parts, 0, (size_t)g->team->size * sizeof *g->parts);
    return g->parts;
}

fsdp_status transport_failed(transport_group *g)
{
    while (g != NULL && g->table->failed == NULL)
        g = g->below;
    return g != NULL ? g->table->failed(g) : FSDP_OK;
}

fsdp_status transport_fail(transport_group *g, fsdp_status why)
{
    if (g->table->fail != NULL)
        g->table->fail();
    return why;
}

bool transport_drain(transport_group *g, double failed_patience_s)
{
    int before = 0, n;
    clock_wait still = clock_wait_begin(); /* since a task last ended */
    while ((n = atomic_load(&g->n_unfinished)) > 0) {
        if (n != before)
            still = clock_wait_begin();
        before = n;
        bool failed = transport_failed(g) != FSDP_OK;
        if (clock_wait_s(&still) > (failed ? failed_patience_s : CLOSE_PATIENCE_S))
            return false;
        usleep(1000);
    }
    return true;
}

void transport_linger(double died_s)
{
    double left_s = died_s + LINGER_S - clock_now_s();
    if (left_s > 0)
        usleep((useconds_t)(left_s * 1e6));
}

/* ---- calls ---------------------------------------------------------------------------------- */

fsdp_status transport_begin(transport_group *g, stream *s, const comm_issue *i, comm_call *call)
{
    TRY(transport_failed(g));
    memset(call, 0, sizeof *call);
    comm_desc *d = &call->desc;
    d->seq = call->number = ++g->next_seq;
    d->op = (int32_t)i->op;
    d->dtype = (int32_t)i->type;
    d->elems = i->agreed_elems;
    d->shape_hash = i->shape_hash;
    d->label_hash = hash_bytes(i->label, strlen(i->label));
    snprintf(d->label, sizeof d->label, "%s", i->label);
    call->ticket = comm_recorder_issue(g->team, g->table->name, s, i, d);
    return FSDP_OK;
}

fsdp_status transport_pass(transport_group *g, stream *s, const comm_call *call,
                           const comm_part *parts, const comm_peer_read *v)
{
    comm_call part = *call;
    part.number = ++g->next_seq;
    part.phase = 0;
    part.more = false;
    return g->table->exchange(g, s, &part, parts, v);
}

comm_call transport_call_below(const transport_group *group, const comm_call *call)
{
    comm_call below = *call;
    below.number = call->phase == 0 ? ++group->below->next_seq : group->below->next_seq;
    return below;
}

fsdp_status transport_gather(transport_group *g, const char *label, const void *mine, size_t bytes,
                             void **all)
{
    size_t n = (size_t)g->team->size;
    comm_issue i = {
        .op = (comm_op)COMM_OP_HOST, .type = DTYPE_U8, .label = label, .agreed_elems = bytes};
    comm_call call;
    char *rows = calloc(n, bytes);
    *all = NULL;
    if (rows == NULL)
        return transport_fail(g,
                              fsdp_error(FSDP_ENOMEM, "", "%s: no memory for %zu ranks", label, n));
    fsdp_status status = transport_begin(g, NULL, &i, &call);
    comm_part *parts = transport_parts(g);
    for (size_t r = 0; r < n; r++)
        parts[r] = (comm_part){
            .send = mine, .send_bytes = bytes, .recv = rows + r * bytes, .recv_bytes = bytes};
    memcpy(parts[g->team->rank].recv, mine, bytes);
    IF_OK(status, g->table->exchange(g, NULL, &call, parts, NULL));
    if (status == FSDP_OK)
        *all = rows;
    else
        free(rows);
    return status;
}

/* Gather the record of the lowest failing rank, so that every rank can quote its message. */
static fsdp_status agree_failure(transport_group *g, int failing, const fsdp_error_info *mine)
{
    void *records;
    TRY(transport_gather(g, "comm_agree: record", mine, sizeof *mine, &records));
    const fsdp_error_info *all = records;
    fsdp_status status = fsdp_error(all[failing].status, all[failing].hint, "rank %d failed: %s",
                                    comm_world_rank(g->team, failing), all[failing].what);
    free(records);
    return status;
}

fsdp_status transport_agree(transport_group *g, fsdp_status mine)
{
    fsdp_error_info record = {.status = FSDP_OK};
    if (mine != FSDP_OK)
        record = *fsdp_error_get();
    int n = g->team->size, failing = 0;
    int32_t code = (int32_t)mine;
    void *all;
    fsdp_status status = transport_gather(g, "comm_agree", &code, sizeof code, &all);
    const int32_t *codes = all;
    while (status == FSDP_OK && failing < n && codes[failing] == FSDP_OK)
        failing++;
    free(all);
    if (status == FSDP_OK && failing < n)
        status = agree_failure(g, failing, &record);
    if (mine != FSDP_OK) {
        fsdp_error_set(&record); /* this rank's own failure takes precedence */
        return mine;
    }
    return status;
}
