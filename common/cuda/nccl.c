/* nccl.c -- NCCL as the transport between GPUs: its groups.
 *
 *   open_over (the ranks of a group that carries host memory) -> exchange, all_gather, ... split
 *   -> close
 *
 * Each group is one communicator of NCCL. They do not block: the host asks until a call has got
 * through, and meanwhile hears of ranks that died, and of time that is up. What hosts settle goes
 * over the group below. Sums are this project's but for one: nccl_reduce_scatter.
 *
 * [NCCL "User's Guide": ncclCommInitRankConfig, ncclCommSplit, "Fault Tolerance"] */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/cuda/nccl_impl.h"

enum { OLDEST_NCCL = NCCL_VERSION(2, 18, 0), ORDERS_CALLS = NCCL_VERSION(2, 26, 0) };
static const double CLOSE_PATIENCE_S = 10; /* without any progress */

/* ---- groups ---------------------------------------------------------------------------------- */

static void job_free(nccl_job *j)
{
    (void)accel_device_set_poll(j->dev, NULL, j);
    if (j->behind_latest != NULL)
        (void)cudaEventDestroy(j->behind_latest);
    for (nccl_flight *f = j->spare, *next; f != NULL; f = next) {
        next = f->next;
        (void)cudaEventDestroy(f->begin);
        (void)cudaEventDestroy(f->end);
        free(f);
    }
    free(j);
}

/* Wait for the calls that the group's streams still have to do; whether there are none. */
static bool drain(const nccl_group *g)
{
    nccl_job *j = g->job;
    const nccl_flight *before = NULL;
    double since_s = clock_now_s();
    for (;;) {
        if (nccl_poll(j) != FSDP_OK)
            return false;
        const nccl_flight *f = j->first;
        while (f != NULL && f->group != g)
            f = f->next;
        if (f == NULL)
            return true;
        double now_s = clock_now_s();
        since_s = f != before ? now_s : since_s;
        before = f;
        if (now_s - since_s > CLOSE_PATIENCE_S)
            return false;
        usleep(200);
    }
}

/* Give the communicator back; by force when there are calls that nobody will end. */
static void comm_end(nccl_group *g)
{
    nccl_job *j = g->job;
    bool idle = drain(g);
    if (g->comm == NULL)
        return;
    if (idle && nccl_settle(j, g->comm, ncclCommFinalize(g->comm), g->group->team, NULL,
                            "ncclCommFinalize") == FSDP_OK)
        (void)ncclCommDestroy(g->comm);
    else
        (void)ncclCommAbort(g->comm);
    g->comm = NULL;
}

static void flights_forget(nccl_job *j, const nccl_group *g)
{
    nccl_flight **at = &j->first;
    while (*at != NULL) {
        nccl_flight *f = *at;
        if (f->group != g) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        f->next = j->spare;
        j->spare = f;
    }
    j->last = at;
}

/* The group below hears of every failure. */
static bool nccl_close(transport_group *group)
{
    nccl_group *g = group->state;
    nccl_job *j = g->job;
    nccl_group **at = &j->groups;
    comm_end(g);
    flights_forget(j, g);
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    j->latest = j->latest == g ? NULL : j->latest;
    free(g);
    if (j->groups == NULL)
        job_free(j);
    return true;
}

/* A group of *team without a communicator. */
static fsdp_status group_new(nccl_job *j, const comm_team *team, transport_group **out)
{
    nccl_group *g = calloc(1, sizeof *g);
    if (g == NULL || transport_group_new(&nccl_transport, team, out) != FSDP_OK) {
        free(g);
        return fsdp_error(FSDP_ENOMEM, "", "nccl: no memory for a group of %d ranks", team->size);
    }
    *g = (nccl_group){.next = j->groups, .job = j, .group = *out};
    j->groups = g;
    (*out)->state = g;
    return FSDP_OK;
}

static ncclConfig_t config_own(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
}

/* Every rank of the parent calls it, also one whose child has no other: child NULL. */
static fsdp_status comm_split_off(nccl_group *parent, int color, transport_group *child)
{
    nccl_job *j = parent->job;
    ncclConfig_t config = config_own();
    ncclComm_t *handle = child != NULL ? &((nccl_group *)child->state)->comm : &j->none;
    const comm_team *team = parent->group->team;
    ncclResult_t result = ncclCommSplit(parent->comm, child != NULL ? color : NCCL_SPLIT_NOCOLOR,
                                        child != NULL ? child->team->rank : 0, handle, &config);
    fsdp_status status = nccl_settle(j, parent->comm, result, team, NULL, "ncclCommSplit");
    if (status == FSDP_OK && child != NULL)
        status = nccl_settle(j, *handle, ncclSuccess, team, NULL, "ncclCommSplit");
    return status == FSDP_OK ? FSDP_OK : nccl_fail(j);
}

static fsdp_status nccl_split(transport_group *group, int color, const comm_team *child,
                              transport_group **out)
{
    nccl_group *g = group->state;
    transport_group *below = NULL;
    *out = NULL;
    TRY(nccl_poll(g->job));
    TRY(group->below->table->split(group->below, color, child, &below));
    fsdp_status status = below != NULL ? group_new(g->job, child, out) : FSDP_OK;
    if (status == FSDP_OK)
        status = comm_split_off(g, color, *out);
    if (*out != NULL)
        (*out)->below = below;
    if (status != FSDP_OK) {
        transport_group_close(*out != NULL ? *out : below);
        *out = NULL;
    }
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What ranks tell each other before they know whether NCCL can be had. */
typedef struct gpu_row {
    char uuid[16], name[96];
    int32_t index, version;
} gpu_row;

static fsdp_status gpu_describe(const device *d, gpu_row *row)
{
    struct cudaDeviceProp prop;
    int version = 0;
    memset(row, 0, sizeof *row);
    TRY(cuda_status(cudaGetDeviceProperties(&prop, d->config.index), "cudaGetDeviceProperties"));
    TRY(nccl_status(NULL, ncclGetVersion(&version), "ncclGetVersion"));
    memcpy(row->uuid, &prop.uuid, sizeof row->uuid);
    snprintf(row->name, sizeof row->name, "%.95s", prop.name);
    row->index = d->config.index;
    row->version = version;
    return FSDP_OK;
}

/* Ranks whose GPUs are unlike sum in other orders, in operations of the fast table. */
static fsdp_status models_compare(const comm_team *team, const gpu_row *all)
{
    const char *mixed = getenv("FSDP_MIXED_GPUS");
    if (mixed != NULL && strcmp(mixed, "1") == 0)
        return FSDP_OK;
    for (int r = 1; r < team->size; r++)
        if (strcmp(all[r].name, all[0].name) != 0)
            return fsdp_error(FSDP_EMISMATCH,
                              "use equal GPUs; with FSDP_MIXED_GPUS=1 ranks may compute other bits",
                              "GPUs differ: rank 0 has %s, rank %d has %s", all[0].name, r,
                              all[r].name);
    return FSDP_OK;
}

/* Why there can be no communicator, in words [bytes]; "": it can be. The same on all ranks. */
static void obstacle(const comm_team *team, const gpu_row *all, char *words, size_t bytes)
{
    words[0] = '\0';
    for (int r = 0; r < team->size; r++)
        if (all[r].version < OLDEST_NCCL)
            snprintf(words, bytes, "rank %d has NCCL %d.%d; it takes 2.18", r,
                     all[r].version / 10000, all[r].version / 100 % 100);
    for (int r = team->size - 1; r > 0; r--)
        for (int o = r - 1; o >= 0; o--)
            if (memcmp(all[r].uuid, all[o].uuid, sizeof all[r].uuid) == 0)
                snprintf(words, bytes,
                         "ranks %d and %d share GPU %d of this host; NCCL needs one for each", o, r,
                         (int)all[o].index);
}

static fsdp_status can_open(transport_group *talk, char *words, size_t bytes)
{
    gpu_row mine, *all;
    TRY(transport_agree(talk, gpu_describe(talk->team->dev, &mine)));
    TRY(transport_gather(talk, "comm_open: GPUs", &mine, sizeof mine, (void **)&all));
    obstacle(talk->team, all, words, bytes);
    fsdp_status status = words[0] == '\0' ? models_compare(talk->team, all) : FSDP_OK;
    free(all);
    return status;
}

static bool env_is_on(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && strcmp(text, "1") == 0;
}

/* A job without groups. NCCL reads its environment when the first communicator is made. */
static fsdp_status job_new(transport_group *talk, nccl_job **out)
{
    int version;
    nccl_job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "nccl: no memory for a group");
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    *j = (nccl_job){.dev = talk->team->dev,
                    .team = talk->team,
                    .control = talk,
                    .checks = env_is_on("FSDP_CHECK")};
    j->last = &j->first;
    fsdp_status status = nccl_status(NULL, ncclGetVersion(&version), "ncclGetVersion");
    j->chains = version < ORDERS_CALLS || !env_is_on("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (status == FSDP_OK)
        status = cuda_status(cudaEventCreateWithFlags(&j->behind_latest, cudaEventDisableTiming),
                             "order of calls");
    if (status == FSDP_OK)
        status = accel_device_set_poll(j->dev, nccl_poll, j);
    if (status == FSDP_OK)
        *out = j;
    else
        job_free(j);
    return status;
}

/* The id that rank 0 makes, to all. */
static fsdp_status id_share(transport_group *talk, ncclUniqueId *id)
{
    ncclUniqueId mine, *all;
    fsdp_status status = FSDP_OK;
    memset(&mine, 0, sizeof mine);
    if (talk->team->rank == 0)
        status = nccl_status(NULL, ncclGetUniqueId(&mine), "ncclGetUniqueId");
    TRY(transport_agree(talk, status));
    TRY(transport_gather(talk, "comm_open: NCCL", &mine, sizeof mine, (void **)&all));
    *id = all[0];
    free(all);
    return FSDP_OK;
}

static fsdp_status comm_start(nccl_group *g)
{
    const comm_team *team = g->group->team;
    ncclConfig_t config = config_own();
    ncclUniqueId id;
    TRY(id_share(g->job->control, &id));
    ncclResult_t result = ncclCommInitRankConfig(&g->comm, team->size, id, team->rank, &config);
    return nccl_settle(g->job, g->comm, result, team, NULL, "ncclCommInitRankConfig");
}

static fsdp_status nccl_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    static char words[128]; /* read as soon as this returns */
    transport_group *talk = transport_control(below);
    nccl_job *j = NULL;
    *out = NULL;
    *why_not = NULL;
    TRY(can_open(talk, words, sizeof words));
    if (words[0] != '\0') {
        *why_not = words;
        return FSDP_OK;
    }
    fsdp_status status = job_new(talk, &j);
    if (status == FSDP_OK) {
        status = group_new(j, below->team, out);
        if (status != FSDP_OK)
            job_free(j);
    }
    status = transport_agree(talk, status);
    if (status == FSDP_OK)
        status = transport_agree(talk, comm_start((*out)->state));
    if (status != FSDP_OK && *out != NULL) {
        nccl_group *g = (*out)->state;
        if (g->comm != NULL)
            (void)ncclCommAbort(g->comm); /* some rank has none */
        g->comm = NULL;
        transport_group_close(*out);
        *out = NULL;
    }
    return status;
}

const comm_transport nccl_transport = {.name = "nccl",
                                       .open_over = nccl_open_over,
                                       .exchange = nccl_exchange,
                                       .all_gather = nccl_all_gather,
                                       .broadcast = nccl_broadcast,
                                       .reduce_scatter = nccl_reduce_scatter,
                                       .failed = nccl_failed,
                                       .split = nccl_split,
                                       .close = nccl_close};
