/* native.c -- groups of the transport that uses the collectives of an accelerator's library.
 *
 *   open_over(below: a group of the same ranks that moves host memory) -> exchange, all_gather, ...
 *   split -> close
 *
 * Each group has one communicator of the library. The host never blocks inside the library: a
 * thread makes the calls, while the host checks for dead ranks and the time limit. Hosts
 * communicate over the group `below`. The library adds only in native_add (floats)
 * and native_all_reduce (integers); this project computes all other sums. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/accel/native_impl.h"
#include "common/base/environment.h"

enum { ID_PIECE_BYTES = 2048 };
static const double CLOSE_PATIENCE_S = 10; /* drain gives up if no call ends for this long */

/* ---- groups ---------------------------------------------------------------------------------- */

static void job_free(native_job *j)
{
    (void)accel_device_set_poll(j->team->dev, NULL, j);
    native_thread_end(j->thread);
    native_event_free(j, j->behind_latest);
    for (native_flight *f; (f = STAILQ_FIRST(&j->spare)) != NULL;) {
        STAILQ_REMOVE_HEAD(&j->spare, link);
        native_event_free(j, f->begin);
        native_event_free(j, f->end);
        free(f);
    }
    free(j);
}

/* Wait for the group's issued calls. Returns false if one failed or makes no progress. */
static bool drain(const native_group *g)
{
    native_job *j = g->job;
    const native_flight *before = NULL;
    clock_wait still = clock_wait_begin();
    for (;;) {
        if (native_poll(j) != FSDP_OK)
            return false;
        const native_flight *f;
        STAILQ_FOREACH(f, &j->flights, link)
        {
            if (f->group == g)
                break;
        }
        if (f == NULL)
            return true;
        if (f != before)
            still = clock_wait_begin();
        before = f;
        if (clock_wait_s(&still) > CLOSE_PATIENCE_S)
            return false;
        usleep(200);
    }
}

/* Destroy the communicator. If issued calls do not end, abort it. */
static void comm_end(native_group *g)
{
    if (!drain(g)) {
        (void)native_group_abort(g);
        return;
    }
    native_request r = {.kind = ASK_DESTROY,
                        .handle = g->comm,
                        .c = {.team = g->group->team, .what = g->job->api->end_name}};
    if (g->comm != NULL)
        (void)native_ask(g->job, &r, NULL);
    g->comm = NULL;
}

static void flights_forget(native_job *j, const native_group *g)
{
    for (native_flight *f = STAILQ_FIRST(&j->flights), *next; f != NULL; f = next) {
        next = STAILQ_NEXT(f, link);
        if (f->group != g)
            continue;
        STAILQ_REMOVE(&j->flights, f, native_flight, link);
        STAILQ_INSERT_HEAD(&j->spare, f, link);
    }
}

/* Returns true: the group below may be closed too. native_fail tells it of every failure. If drain
 * gave up without a failure, no rank waits in the group below, because the front has synchronised
 * the ranks. */
bool native_close(transport_group *group)
{
    native_group *g = group->state;
    native_job *j = g->job;
    comm_end(g);
    flights_forget(j, g);
    LIST_REMOVE(g, link);
    free(g);
    if (LIST_EMPTY(&j->groups))
        job_free(j);
    return true;
}

/* A group of *team without a communicator. */
static fsdp_status group_new(native_job *j, const comm_transport *table, const comm_team *team,
                             transport_group **out)
{
    TRY(transport_group_new(table, team, sizeof(native_group), out));
    native_group *g = (*out)->state;
    *g = (native_group){.job = j, .group = *out};
    LIST_INSERT_HEAD(&j->groups, g, link);
    return FSDP_OK;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* Rank 0 makes id [id_bytes] and all ranks get it, in pieces: a gather between hosts carries only
 * small messages. */
static fsdp_status id_share(const native_api *api, transport_group *talk, char *id)
{
    fsdp_status status = FSDP_OK;
    if (talk->team->rank == 0)
        status = api->id_make(id);
    TRY(transport_agree(talk, status));
    for (size_t at = 0; at < api->id_bytes; at += ID_PIECE_BYTES) {
        const size_t left = api->id_bytes - at, n = left < ID_PIECE_BYTES ? left : ID_PIECE_BYTES;
        void *all; /* begins with rank 0's piece */
        TRY(transport_gather(talk, "comm_open: id", id + at, n, &all));
        memcpy(id + at, all, n);
        free(all);
    }
    return FSDP_OK;
}

/* talk: a control group with the same ranks as g. */
static fsdp_status comm_start(native_group *g, transport_group *talk)
{
    native_job *j = g->job;
    void *id = native_thread_id(j->thread);
    TRY(id_share(j->api, talk, id));
    native_request r = {
        .kind = ASK_START, .id = id, .c = {.team = g->group->team, .what = j->api->start_name}};
    TRY(native_ask(j, &r, NULL));
    g->comm = r.handle;
    return FSDP_OK;
}

/* All ranks of the parent call this. child is NULL on a rank whose part has no other rank. */
static fsdp_status comm_split_off(native_group *parent, int color, transport_group *child)
{
    native_job *j = parent->job;
    native_request r = {.kind = ASK_SPLIT,
                        .handle = parent->comm,
                        .color = color,
                        .rank = child != NULL ? child->team->rank : -1,
                        .c = {.team = parent->group->team, .what = j->api->split_name}};
    TRY(native_ask(j, &r, NULL));
    if (child != NULL)
        ((native_group *)child->state)->comm = r.child;
    return FSDP_OK;
}

fsdp_status native_split(transport_group *group, const comm_team *child, transport_group **out)
{
    native_group *g = group->state;
    native_job *j = g->job;
    transport_group *below = NULL;
    TRY(native_poll(j));
    TRY(group->below->table->split(group->below, child, &below));
    fsdp_status status = below != NULL ? group_new(j, group->table, child, out) : FSDP_OK;
    if (status == FSDP_OK && j->api->split != NULL)
        status = comm_split_off(g, child->first, *out);
    else if (status == FSDP_OK && *out != NULL)
        status = comm_start((*out)->state, transport_control(below));
    if (*out != NULL)
        (*out)->below = below;
    if (status == FSDP_OK)
        return FSDP_OK;
    status = native_fail(j);
    transport_group_close(*out != NULL ? *out : below);
    *out = NULL;
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Devices of different models may add in different orders in operations of the fast table. */
static fsdp_status models_compare(const comm_team *team, const native_row *all)
{
    const char *word = accel_api_of(team->dev)->word;
    char name[32], hint[128];
    snprintf(name, sizeof name, "FSDP_MIXED_%sS", word);
    snprintf(hint, sizeof hint, "use equal %ss; with %s=1 ranks may compute other bits", word,
             name);
    if (environment_number(name) != 0)
        return FSDP_OK;
    for (int r = 1; r < team->size; r++)
        if (strcmp(all[r].model, all[0].model) != 0)
            return fsdp_error(FSDP_EMISMATCH, hint, "%ss differ: rank 0 has %s, rank %d has %s",
                              word, all[0].model, r, all[r].model);
    return FSDP_OK;
}

/* Write to words [bytes] why the library cannot make a communicator; "" if it can. All ranks get
 * the same result. */
static void obstacle(const native_api *api, const comm_team *team, const native_row *all,
                     char *words, size_t bytes)
{
    char version[64];
    bool share = true;
    words[0] = '\0';
    for (int r = 0; r < team->size; r++)
        share = share && all[r].shares;
    for (int r = 0; r < team->size; r++)
        if (api->too_old != NULL && api->too_old(&all[r], version, sizeof version))
            snprintf(words, bytes, "rank %d has %s", r, version);
    for (int r = team->size - 1; r > 0 && !share; r--)
        for (int o = r - 1; o >= 0; o--)
            if (memcmp(all[r].unit, all[o].unit, sizeof all[r].unit) == 0)
                snprintf(words, bytes,
                         "ranks %d and %d share %s %d of this host; %s needs one for each%s", o, r,
                         accel_api_of(team->dev)->word, (int)all[o].index, api->library,
                         api->to_share);
}

static fsdp_status can_open(const native_api *api, transport_group *talk, char *words, size_t bytes)
{
    native_row mine = {.index = 0};
    void *all;
    TRY(transport_agree(talk, api->describe(talk->team->dev, &mine)));
    TRY(transport_gather(talk, "comm_open: devices", &mine, sizeof mine, &all));
    obstacle(api, talk->team, all, words, bytes);
    fsdp_status status = words[0] == '\0' ? models_compare(talk->team, all) : FSDP_OK;
    free(all);
    return status;
}

/* A job without groups. */
static fsdp_status job_new(const native_api *api, transport_group *talk, native_job **out)
{
    native_job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a group", api->name);
    *j = (native_job){.api = api,
                      .lib = accel_api_of(talk->team->dev),
                      .team = talk->team,
                      .control = talk,
                      .checks = environment_number("FSDP_CHECK") != 0};
    STAILQ_INIT(&j->flights);
    STAILQ_INIT(&j->spare);
    fsdp_status status = native_thread_start(api, &j->thread);
    IF_OK(status, api->prepare(&j->chains));
    IF_OK(status, native_event(j, ACCEL_ORDERS, &j->behind_latest));
    IF_OK(status, accel_device_set_poll(j->team->dev, native_poll, j));
    if (status == FSDP_OK)
        *out = j;
    else
        job_free(j);
    return status;
}

fsdp_status native_open_over(const native_api *api, const comm_transport *table,
                             transport_group *below, transport_group **out, const char **why_not)
{
    static char words[192]; /* the caller reads it before it calls again */
    transport_group *talk = transport_control(below);
    native_job *j = NULL;
    TRY(can_open(api, talk, words, sizeof words));
    if (words[0] != '\0') {
        *why_not = words;
        return FSDP_OK;
    }
    fsdp_status status = job_new(api, talk, &j);
    if (status == FSDP_OK) {
        status = group_new(j, table, below->team, out);
        if (status != FSDP_OK)
            job_free(j);
    }
    status = transport_agree(talk, status);
    IF_OK(status, transport_agree(talk, comm_start((*out)->state, talk)));
    if (status != FSDP_OK && *out != NULL) {
        (void)native_group_abort((*out)->state); /* some rank has no communicator */
        transport_group_close(*out);
        *out = NULL;
    }
    return status;
}
