/* comm_group.c -- groups: opening, splitting, closing, and what the hosts of a group settle
 * together.
 *
 *   comm_open -> comm_split ... comm_agree, comm_same ... -> comm_close (splits first)
 *
 * The first group owns the flight recorder, its splits share it. Host calls are collectives too:
 * they take a number and their descriptors are compared. */
#include "common/comm/comm_impl.h"
#include "common/comm/transport/shm_boot.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const double LONGEST_TIMEOUT_S = 1e7;
enum { DRAIN_S = 1, DRAIN_GRACE_MS = 100 };

/* What the caller wants, or FSDP_TIMEOUT_S, or 300. */
static fsdp_status timeout_from(const comm_config *config, double *timeout_s)
{
    const char *text = getenv("FSDP_TIMEOUT_S");
    *timeout_s = config->timeout_s > 0 ? config->timeout_s : 300;
    if (config->timeout_s > 0 || text == NULL || *text == '\0')
        return FSDP_OK;
    char *end;
    *timeout_s = strtod(text, &end);
    if (*end == '\0' && *timeout_s > 0 && *timeout_s <= LONGEST_TIMEOUT_S)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "unset FSDP_TIMEOUT_S, or set it to seconds",
                      "FSDP_TIMEOUT_S: got '%.40s', expected a number above 0 and up to %.0e", text,
                      LONGEST_TIMEOUT_S);
}

/* What starts the ranks. shm over an MPI launcher begins as mpi. */
static fsdp_status backend_choose(comm_backend wanted, device *d, comm_backend *backend)
{
    comm_run_start run;
    bool by_fsdp_run = comm_run_started(&run);
    *backend = wanted;
    if (*backend != COMM_AUTO && *backend != COMM_SELF && *backend != COMM_MPI &&
        *backend != COMM_SHM)
        return fsdp_error(FSDP_EINVAL, "--comm auto, mpi or shm", "comm_open: unknown backend %d",
                          (int)*backend);
    if (*backend == COMM_MPI && by_fsdp_run)
        return fsdp_error(FSDP_EINVAL, "leave --comm out, or start it with mpiexec",
                          "comm_open: --comm mpi under fsdp_run, which starts ranks without MPI");
    if (*backend == COMM_AUTO && !by_fsdp_run && !comm_launcher_present())
        *backend = COMM_SELF;
    else if (*backend != COMM_SELF)
        *backend = by_fsdp_run ? COMM_SHM : COMM_MPI;
    if (*backend == COMM_MPI && device_get_kind(d) != DEVICE_CPU)
        return fsdp_error(FSDP_ESKIP, "--device cpu",
                          "comm_open: the mpi backend moves host memory only");
    return FSDP_OK;
}

/* Ranks that MPI started go over to shared memory: all when they are on one host, else those of
 * each host, where that can be. */
static fsdp_status over_to_shm(comm *c, comm_backend wanted)
{
    bool used = false, unmapped = false, one_host = c->local_size == c->size;
    if (wanted == COMM_MPI || c->size == 1)
        return FSDP_OK;
    if (one_host) {
        TRY(comm_shm_over_mpi(c, c, &used));
        unmapped = !used;
    } else if (wanted == COMM_AUTO) {
        TRY(comm_hier_over_mpi(c, &unmapped));
    }
    c->next_seq = 0; /* what the ranks settled to get here does not count */
    if (wanted == COMM_SHM && !used)
        return fsdp_error(FSDP_ESKIP, "leave --comm out, or pass --comm mpi",
                          "comm_open: --comm shm: %s",
                          one_host ? "the ranks cannot map each other's memory"
                                   : "the ranks are on several hosts");
    if (unmapped && c->rank == 0)
        fprintf(stderr,
                "note: the ranks cannot map each other's memory; they go on with --comm mpi\n");
    return FSDP_OK;
}

void comm_group_free(comm *c)
{
    if (c == NULL)
        return;
    if (c->owns_recorder) {
        comm_recorder_free(c->recorder);
        free(c->job_stats);
    }
    free(c->world_ranks);
    free(c->parts);
    free(c->lengths);
    free(c->slices);
    free(c);
}

/* Scratch for the calls of a group whose size is known. */
static fsdp_status scratch_alloc(comm *c)
{
    c->parts = calloc((size_t)c->size, sizeof *c->parts);
    c->lengths = calloc((size_t)c->size, sizeof *c->lengths);
    c->slices = calloc((size_t)c->size, sizeof *c->slices);
    if (c->parts == NULL || c->lengths == NULL || c->slices == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a group of %d ranks", c->size);
    return FSDP_OK;
}

comm *comm_group_new(const comm *c, int rank, const int *world_ranks, int n)
{
    comm *core = calloc(1, sizeof *core);
    if (core == NULL)
        return NULL;
    core->dev = c->dev;
    core->timeout_s = c->timeout_s;
    core->recorder = c->recorder;
    core->job_stats = c->job_stats;
    core->local_rank = c->local_rank;
    core->local_size = c->local_size;
    core->rank = rank;
    core->size = n;
    core->world_ranks = calloc((size_t)n, sizeof *core->world_ranks);
    if (core->world_ranks == NULL || scratch_alloc(core) != FSDP_OK) {
        comm_group_free(core);
        return NULL;
    }
    memcpy(core->world_ranks, world_ranks, (size_t)n * sizeof *world_ranks);
    return core;
}

static fsdp_status start(comm *c, comm_backend backend)
{
    switch (backend) {
    case COMM_MPI:
        return comm_mpi_open(c);
    case COMM_SHM:
        return comm_shm_open(c);
    default:
        return comm_self_open(c);
    }
}

/* What the caller wants, and where it does not mind, what FSDP_COMM says. */
static fsdp_status backend_wanted(const comm_config *config, comm_backend *wanted)
{
    static const char *const names[] = {"auto", "self", "mpi", "shm"};
    const char *text = getenv("FSDP_COMM"), *launch = getenv(COMM_RUN_ENV);
    comm_run_start run;
    *wanted = config->backend;
    if (launch != NULL && !comm_run_started(&run))
        return fsdp_error(FSDP_EINVAL, "unset " COMM_RUN_ENV ", which is fsdp_run's",
                          COMM_RUN_ENV ": got '%.40s', expected rank, ranks and two files", launch);
    if (*wanted != COMM_AUTO || text == NULL || *text == '\0')
        return FSDP_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            *wanted = (comm_backend)i;
    bool is_known = *wanted != COMM_AUTO || strcmp(text, names[COMM_AUTO]) == 0;
    if (is_known && (*wanted != COMM_SELF || comm_launched_ranks() == 1))
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "unset FSDP_COMM, or set it to auto, mpi or shm",
                      "FSDP_COMM: got '%.40s' with %d ranks, expected auto, mpi or shm", text,
                      comm_launched_ranks());
}

fsdp_status comm_open(device *d, const comm_config *config, comm **out)
{
    comm_backend wanted, backend;
    double timeout_s;
    TRY(timeout_from(config, &timeout_s));
    TRY(backend_wanted(config, &wanted));
    TRY(backend_choose(wanted, d, &backend));
    comm *c = calloc(1, sizeof *c);
    comm_recorder *recorder = comm_recorder_create();
    comm_stats *job_stats = calloc(1, sizeof *job_stats);
    if (c == NULL || recorder == NULL || job_stats == NULL) {
        free(c);
        comm_recorder_free(recorder);
        free(job_stats);
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for a group");
    }
    c->dev = d;
    c->timeout_s = timeout_s;
    c->recorder = recorder;
    c->job_stats = job_stats;
    c->owns_recorder = true;
    fsdp_status status;
    GOTO_ON_FAIL(status, start(c, backend), fail);
    GOTO_ON_FAIL(status, scratch_alloc(c), fail_opened);
    if (backend == COMM_MPI)
        GOTO_ON_FAIL(status, over_to_shm(c, wanted), fail_opened);
    *out = c;
    return FSDP_OK;
fail_opened:
    c->transport->close(c->group);
fail:
    comm_group_free(c);
    return status;
}

void comm_close(comm *c)
{
    if (c == NULL)
        return;
    /* no rank leaves while another may still need it; on a failed group this returns at once */
    char mine = 0;
    char *all = malloc((size_t)c->size);
    if (c->size > 1 && all != NULL)
        (void)comm_host_gather(c, "comm_close", &mine, all, 1);
    free(all);
    c->transport->close(c->group);
    comm_group_free(c);
}

int comm_rank(const comm *c)
{
    return c->rank;
}

int comm_size(const comm *c)
{
    return c->size;
}

int comm_local_rank(const comm *c)
{
    return c->local_rank;
}

int comm_local_size(const comm *c)
{
    return c->local_size;
}

const char *comm_backend_name(const comm *c)
{
    return c->transport->name;
}

/* ---- split --------------------------------------------------------------------------------- */

typedef struct choice {
    int32_t color, key;
} choice;

/* Fill size, rank and world_ranks of *child from everyone's choice; returns the lowest rank of the
 * parent with our color, which names the new group.                                              */
static int members_choose(const comm *parent, const choice *all, comm *child)
{
    choice mine = all[parent->rank];
    int lowest = -1;
    for (int r = 0; r < parent->size; r++) {
        if (all[r].color != mine.color)
            continue;
        if (lowest < 0)
            lowest = r;
        /* rank of r: how many members come before it by (key, rank) */
        int new_rank = 0;
        for (int o = 0; o < parent->size; o++) {
            if (all[o].color == mine.color &&
                (all[o].key < all[r].key || (all[o].key == all[r].key && o < r)))
                new_rank++;
        }
        child->world_ranks[new_rank] = parent->world_ranks[r];
        child->size++;
        if (r == parent->rank)
            child->rank = new_rank;
    }
    return lowest;
}

static fsdp_status split_into(comm *parent, const choice *all, comm *child)
{
    child->dev = parent->dev;
    child->timeout_s = parent->timeout_s;
    child->recorder = parent->recorder;
    child->job_stats = parent->job_stats;
    child->local_rank = parent->local_rank;
    child->local_size = parent->local_size;
    child->world_ranks = calloc((size_t)parent->size, sizeof *child->world_ranks);
    if (child->world_ranks == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_split: no memory for a group");
    int lowest = members_choose(parent, all, child);
    TRY(scratch_alloc(child));
    child->transport = parent->transport;
    if (parent->hier != NULL)
        TRY(comm_hier_split(parent, lowest, child));
    else
        TRY(parent->transport->split(parent->group, lowest, child, &child->group));
    if (child->group == NULL)
        comm_self_use(child);
    return FSDP_OK;
}

fsdp_status comm_split(comm *c, int color, int key, comm **out)
{
    choice mine = {.color = color, .key = key};
    choice *all = calloc((size_t)c->size, sizeof *all);
    comm *child = calloc(1, sizeof *child);
    fsdp_status status = FSDP_OK;
    if (all == NULL || child == NULL)
        status = fsdp_error(FSDP_ENOMEM, "", "comm_split: no memory for a group");
    if (status == FSDP_OK)
        status = comm_host_gather(c, "comm_split", &mine, all, sizeof mine);
    if (status == FSDP_OK)
        status = split_into(c, all, child);
    free(all);
    if (status == FSDP_OK)
        *out = child;
    else if (child != NULL)
        comm_group_free(child);
    return status;
}

/* ---- what hosts settle together ------------------------------------------------------------ */

/* The record of the lowest failing rank, broadcast: every rank learns its words. */
static fsdp_status agree_failure(comm *c, int failing, const fsdp_error_info *mine)
{
    fsdp_error_info *all = calloc((size_t)c->size, sizeof *all);
    if (all == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_agree: no memory for %d records", c->size);
    fsdp_status status = comm_host_gather(c, "comm_agree: record", mine, all, sizeof *mine);
    if (status == FSDP_OK) {
        const fsdp_error_info *theirs = &all[failing];
        status = fsdp_error(theirs->status, theirs->hint, "rank %d failed: %s",
                            c->world_ranks[failing], theirs->what);
    }
    free(all);
    return status;
}

fsdp_status comm_agree(comm *c, fsdp_status mine)
{
    fsdp_error_info record = {.status = FSDP_OK};
    if (mine != FSDP_OK)
        record = *fsdp_error_get();
    int32_t code = (int32_t)mine;
    int32_t *codes = calloc((size_t)c->size, sizeof *codes);
    if (codes == NULL)
        return mine != FSDP_OK ? mine : fsdp_error(FSDP_ENOMEM, "", "comm_agree: no memory");
    fsdp_status status = comm_host_gather(c, "comm_agree", &code, codes, sizeof code);
    int failing = 0;
    while (status == FSDP_OK && failing < c->size && codes[failing] == FSDP_OK)
        failing++;
    if (status == FSDP_OK && failing < c->size)
        status = agree_failure(c, failing, &record);
    free(codes);
    if (mine != FSDP_OK) {
        fsdp_error_set(&record); /* one's own failure comes first */
        return mine;
    }
    return status;
}

typedef struct same_text {
    uint64_t hash, length;
    char text[240]; /* cut if longer, for the message */
} same_text;

fsdp_status comm_same(comm *c, const char *what, const char *text)
{
    same_text mine = {.hash = comm_hash(text, strlen(text)), .length = strlen(text)};
    snprintf(mine.text, sizeof mine.text, "%s", text);
    same_text *all = calloc((size_t)c->size, sizeof *all);
    if (all == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_same: no memory for %d texts", c->size);
    fsdp_status status = comm_host_gather(c, "comm_same", &mine, all, sizeof mine);
    for (int r = 1; status == FSDP_OK && r < c->size; r++) {
        if (all[r].hash == all[0].hash && all[r].length == all[0].length)
            continue;
        status = fsdp_error(FSDP_EMISMATCH, "start every rank with the same options and files",
                            "%s differs: rank %d has '%s', rank %d has '%s'", what,
                            c->world_ranks[r], all[r].text, c->world_ranks[0], all[0].text);
    }
    free(all);
    return status;
}

/* Wait until a launcher that listens on a pipe has taken what this process wrote, and a moment more
 * in which it can pass it on: at MPI_Abort MPICH 4.0.2's ends the job with what it holds unprinted
 * (1 of 60 aborts on a busy machine). A reader that never reads costs a second. */
static void output_drain(void)
{
    double until_s = clock_now_s() + DRAIN_S;
    struct stat is;
    int left;
    bool is_piped = fstat(STDERR_FILENO, &is) == 0 && S_ISFIFO(is.st_mode);
    while (is_piped && ioctl(STDERR_FILENO, FIONREAD, &left) == 0 && left > 0 &&
           clock_now_s() < until_s)
        usleep(1000);
    if (is_piped)
        usleep(DRAIN_GRACE_MS * 1000);
}

_Noreturn void comm_abort(comm *c, int exit_code)
{
    fflush(NULL);
    output_drain();
    if (c != NULL)
        c->transport->abort(c->group, exit_code);
    _exit(exit_code);
}

comm_stats comm_stats_read(const comm *c)
{
    return c->stats;
}

void comm_stats_reset(comm *c)
{
    memset(&c->stats, 0, sizeof c->stats);
}

comm_stats comm_job_stats_read(const comm *c)
{
    return *c->job_stats;
}

void comm_job_stats_reset(comm *c)
{
    memset(c->job_stats, 0, sizeof *c->job_stats);
}

void comm_set_observer(comm *c, comm_observer fn, void *self)
{
    c->observer = fn;
    c->observer_self = self;
}
