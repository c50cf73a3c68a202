/* comm_group.c -- communicators: opening, splitting, closing, ending the job.
 *
 *   comm_open -> comm_range ... -> comm_close (splits first)
 *
 * The first group of the job owns the flight recorder; its splits share it. */
#include "common/comm/comm_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/environment.h"

/* A short timeout is meant for ranks that already run. Starting a process on a busy machine may
 * take longer. */
static const double LEAST_START_S = 10;
enum { DRAIN_S = 1, DRAIN_GRACE_MS = 100 };

/* Choose the transport that opens the first group. Under an MPI launcher it is mpi; shm is then
 * opened over it. */
static fsdp_status launch_choose(comm_backend wanted, const comm_transport **starts)
{
    comm_run_start run;
    bool by_fsdp_run = comm_run_started(&run),
         is_auto = wanted == COMM_AUTO || wanted == COMM_NATIVE;
    /* Also a single rank under a launcher uses MPI: the launcher may watch it, and it can call
     * MPI_Abort. */
    bool by_mpi = comm_launched_ranks() > 1 ||
                  (mpi_transport.exchange != NULL && comm_launcher_variable() != NULL);
    if (wanted == COMM_MPI && by_fsdp_run)
        return fsdp_error(FSDP_EINVAL, "leave --comm out, or start it with MPICH's mpiexec",
                          "comm_open: --comm mpi under fsdp_run, which starts ranks without MPI");
    if (wanted == COMM_DRY)
        *starts = &dry_transport;
    else if (wanted == COMM_SELF || (is_auto && !by_fsdp_run && !by_mpi))
        *starts = &self_transport;
    else
        *starts = by_fsdp_run ? &shm_transport : &mpi_transport;
    return FSDP_OK;
}

static void comm_free(comm *c)
{
    if (c == NULL)
        return;
    transport_group_close(c->data);
    comm_hang_close(c->hang);
    if (c->team.number == 0) /* opened by comm_open; its splits share the recorder */
        comm_recorder_free(c->team.recorder);
    free(c->lengths);
    free(c->slices);
    free(c);
}

/* Allocate the rest of a communicator whose transport group is open. */
static fsdp_status comm_complete(comm *c)
{
    size_t size = (size_t)c->team.size;
    c->lengths = calloc(size, sizeof *c->lengths);
    c->slices = calloc(size, sizeof *c->slices);
    if (c->lengths == NULL || c->slices == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a group of %zu ranks", size);
    return FSDP_OK;
}

fsdp_status comm_put_over(comm *c, const comm_transport *over, const char **why_not)
{
    transport_group *top = NULL;
    *why_not = NULL;
    TRY(over->open_over(c->data, &top, why_not));
    if (top == NULL)
        return FSDP_OK;
    top->below = c->data;
    c->data = top;
    return FSDP_OK;
}

/* Move ranks that MPI started to shared memory, if possible: to shm if all are on one host,
 * otherwise to shm+mpi, which uses shared memory inside each host. */
static fsdp_status over_to_shm(comm *c, comm_backend wanted)
{
    const char *why_not = "the ranks are on several hosts";
    bool one_host = c->team.local_size == c->team.size;
    const transport_group *started = c->data;
    if (wanted == COMM_MPI || c->team.size == 1)
        return FSDP_OK;
    if (one_host || wanted != COMM_SHM)
        TRY(comm_put_over(c, one_host ? &shm_transport : &hier_transport, &why_not));
    if (wanted == COMM_SHM && c->data == started)
        return fsdp_error(FSDP_ESKIP, "leave --comm out, or pass --comm mpi",
                          "comm_open: --comm shm: %s", why_not);
    if (why_not != NULL && c->team.rank == 0)
        fprintf(stderr, "note: %s; using --comm mpi\n", why_not);
    return FSDP_OK;
}

/* Put the link that FSDP_LINK describes on top of the transport that moves the data. */
static fsdp_status link_over(comm *c)
{
    const char *text = environment_text("FSDP_LINK"), *why_not;
    TRY(comm_same(c, "FSDP_LINK", text != NULL ? text : ""));
    return text == NULL ? FSDP_OK : comm_put_over(c, &link_transport, &why_not);
}

/* Use the device's own transport, unless the caller asked for another. If it cannot be opened, that
 * is an error: copies through the host are slow, so they are used only on request. */
static fsdp_status over_to_native(comm *c, comm_backend wanted, const comm_transport *native)
{
    const char *why_not = NULL;
    if (native == NULL && wanted == COMM_NATIVE)
        return fsdp_error(FSDP_EINVAL, "leave --comm out, or choose another --device",
                          "comm_open: device %s has no transport of its own",
                          device_name(c->team.dev));
    if (native == NULL || wanted == COMM_MPI || wanted == COMM_SHM || c->team.size == 1)
        return FSDP_OK;
    device_host_call_begin();
    fsdp_status status = comm_put_over(c, native, &why_not);
    device_host_call_end();
    if (status != FSDP_OK || why_not == NULL)
        return status;
    return fsdp_error(FSDP_EINVAL,
                      "start fewer ranks, or pass --comm shm (several hosts: mpi), which copies "
                      "through memory of the host",
                      "comm_open: %s", why_not);
}

/* Complete the chain for the device's memory: add the device's own transport or, if that is not
 * used and the host cannot read the memory, staged.c. The simulated link is below staged.c. */
static fsdp_status over_to_device(comm *c, comm_backend wanted, const comm_transport *native)
{
    const char *none;
    const transport_group *between_hosts = c->data;
    bool is_dry = wanted == COMM_DRY;
    if (!is_dry)
        TRY(over_to_native(c, wanted, native));
    bool by_copies = c->data == between_hosts && !device_memory_is_host(c->team.dev) &&
                     !(is_dry && c->team.dry.moves == MOVES_NATIVELY);
    if (!is_dry)
        TRY(link_over(c));
    return by_copies ? comm_put_over(c, &staged_transport, &none) : FSDP_OK;
}

/* Choose the kernels that add in all-reduces. */
static fsdp_status sums_choose(const comm_config *config, const device *d, const sum_kernels **sums)
{
    static const sum_kernels cpu = {.launch = sum_launch_cpu};
    *sums = config->sums != NULL ? config->sums : &cpu;
    if (config->sums == NULL && !device_runs_c(d))
        return fsdp_error(FSDP_EINVAL, "set comm_config.sums to the sums of the device's ops",
                          "comm_open: no kernels for sums on device %s", device_name(d));
    return FSDP_OK;
}

/* The backend that the caller asks for or, if that is COMM_AUTO, the one FSDP_COMM names. */
static fsdp_status backend_wanted(const comm_config *config, comm_backend *wanted)
{
    static const char *const names[] = {"auto", "self", "mpi", "shm"};
    const char *text = environment_text("FSDP_COMM"), *launch = getenv(COMM_RUN_ENV);
    comm_run_start run;
    *wanted = config->backend;
    if (launch != NULL && !comm_run_started(&run))
        return fsdp_error(FSDP_EINVAL, "unset " COMM_RUN_ENV ", which is fsdp_run's",
                          COMM_RUN_ENV ": got '%.40s', expected rank, ranks and two files", launch);
    if (*wanted != COMM_AUTO || text == NULL)
        return FSDP_OK;
    if (config->native != NULL && strcmp(text, config->native->name) == 0) {
        *wanted = COMM_NATIVE;
        return FSDP_OK;
    }
    for (int i = COMM_AUTO; i <= COMM_SHM; i++) {
        if (strcmp(text, names[i]) != 0 || (i == COMM_SELF && comm_launched_ranks() > 1))
            continue;
        *wanted = (comm_backend)i;
        return FSDP_OK;
    }
    return fsdp_error(FSDP_EINVAL, "unset FSDP_COMM, or set it to auto, mpi or shm",
                      "FSDP_COMM: got '%.40s' with %d ranks, expected auto, mpi or shm", text,
                      comm_launched_ranks());
}

/* Free c after a failure. If ranks waited for one that did not come, or one died, first write this
 * rank's last calls: they help to find out why. */
static void open_failed(comm *c, fsdp_status why)
{
    if (why == FSDP_ENOMEM && c->data != NULL) /* the others may have memory, and wait */
        transport_fail(transport_control(c->data), why);
    if (why == FSDP_ETIMEOUT || why == FSDP_ECOMM)
        comm_hang_write(c->team.recorder, fsdp_error_get()->what);
    comm_free(c);
}

fsdp_status comm_open(device *d, const comm_config *config, comm **out)
{
    const comm_transport *starts = NULL;
    comm_backend wanted;
    const double timeout_s =
        config->timeout_s > 0 ? config->timeout_s : environment_number("FSDP_TIMEOUT_S");
    const sum_kernels *sums;
    TRY(sums_choose(config, d, &sums));
    TRY(backend_wanted(config, &wanted));
    TRY(launch_choose(wanted, &starts));
    comm *c = calloc(1, sizeof *c);
    comm_recorder *recorder = comm_recorder_create(d);
    if (c == NULL || recorder == NULL) {
        free(c);
        comm_recorder_free(recorder);
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for a group");
    }
    c->team = (comm_team){.timeout_s = timeout_s,
                          .start_s = timeout_s > LEAST_START_S ? timeout_s : LEAST_START_S,
                          .dev = d,
                          .recorder = recorder,
                          .dry = config->dry};
    c->sums = sums;
    c->hang = wanted == COMM_DRY ? NULL : comm_hang_open(recorder, config->keeps_signals);
    device_host_call_begin();
    fsdp_status status = starts->open(&c->team, &c->data);
    if (status == FSDP_OK && config->backend != COMM_SELF && wanted != COMM_DRY)
        status =
            comm_launched_check(c->team.size, starts == &mpi_transport ? "MPI" : "this process");
    IF_OK(status, comm_complete(c));
    if (status == FSDP_OK && starts == &mpi_transport)
        status = over_to_shm(c, wanted);
    device_host_call_end();
    IF_OK(status, over_to_device(c, wanted, config->native));
    if (status == FSDP_OK)
        *out = c;
    else
        open_failed(c, status);
    return status;
}

void comm_close(comm *c)
{
    if (c == NULL)
        return;
    /* no rank leaves while another may still need it; on a failed group this does not wait */
    char mine = 0;
    void *all = NULL;
    if (c->team.size > 1)
        (void)comm_host_gather(c, "comm_close", &mine, 1, &all);
    free(all);
    device_host_call_begin();
    comm_free(c);
    device_host_call_end();
}

int comm_rank(const comm *c)
{
    return c->team.rank;
}

int comm_size(const comm *c)
{
    return c->team.size;
}

int comm_local_rank(const comm *c)
{
    return c->team.local_rank;
}

int comm_local_size(const comm *c)
{
    return c->team.local_size;
}

const char *comm_backend_name(const comm *c)
{
    return c->data->table->name;
}

comm_moves comm_moves_of(const comm *c)
{
    return c->data->table->moves;
}

/* ---- some of a group's ranks ----------------------------------------------------------------- */

/* Make child the group of these ranks of the parent. */
static fsdp_status split_into(comm *parent, const comm_ranks *x, comm *child)
{
    const comm_team *team = &parent->team;
    comm_team_part(team, x, &child->team);
    child->sums = parent->sums;
    uint64_t name[] = {team->number, transport_control(parent->data)->next_seq, (uint64_t)x->first};
    child->team.number = hash_bytes(name, sizeof name);
    fsdp_status status = FSDP_OK;
    device_host_call_begin();
    if (team->size > 1)
        status = parent->data->table->split(parent->data, &child->team, &child->data);
    device_host_call_end();
    TRY(status);
    if (child->data == NULL)
        TRY(transport_group_new(&self_transport, &child->team, 0, &child->data));
    return comm_complete(child);
}

/* The number in the parent of rank i of x. */
static int member(const comm_ranks *x, int i)
{
    return x->first + i / x->n * x->outer_step + i % x->n * x->step;
}

/* How messages name the ranks of x. */
static fsdp_text text_of(const comm_ranks *x)
{
    fsdp_text t;
    int n = snprintf(t.text, sizeof t.text, "%d ranks from %d by %d", x->n, x->first, x->step);
    if (x->n_outer != 1)
        snprintf(t.text + n, sizeof t.text - (size_t)n, ", %d times by %d", x->n_outer,
                 x->outer_step);
    return t;
}

/* Check that all members of each subset passed that subset. All ranks check all, so that either all
 * fail or none. The first member of a subset is compared with all its members, the others only with
 * the first: O(ranks). */
static fsdp_status check_subsets(const comm_team *team, const comm_ranks *all)
{
    for (int r = 0; r < team->size; r++) {
        const comm_ranks *a = &all[r];
        for (int i = 0; i < (a->first == r ? a->n * a->n_outer : 1); i++) {
            int m = member(a, i);
            const comm_ranks *b = &all[m];
            if (memcmp(a, b, sizeof *a) != 0)
                return fsdp_error(FSDP_EMISMATCH, "pass the same range on all ranks that it names",
                                  "comm_range: rank %d has %s, rank %d has %s",
                                  comm_world_rank(team, m), text_of(b).text,
                                  comm_world_rank(team, r), text_of(a).text);
        }
    }
    return FSDP_OK;
}

/* Whether x names ascending ranks of a team of `size`. */
static bool is_ascending(const comm_ranks *x, int size)
{
    const int last = size - 1 - x->first;
    if (x->first < 0 || x->step < 1 || x->n < 1 || x->n_outer < 1 || last < 0 ||
        x->n - 1 > last / x->step)
        return false;
    const int run = (x->n - 1) * x->step; /* from the first rank of a run to its last */
    return x->n_outer == 1 ||
           (x->outer_step > run && x->n_outer - 1 <= (last - run) / x->outer_step);
}

/* Check that this rank is one of x, and that x are ranks of the team whose numbers in the first
 * group have the form of comm_team. */
static fsdp_status check_own(const comm_team *team, const comm_ranks *x)
{
    bool is_in = false, has_form = is_ascending(x, team->size);
    for (int i = 0; has_form && i < x->n * x->n_outer; i++)
        is_in = is_in || member(x, i) == team->rank;
    if (is_in) {
        comm_team part;
        comm_team_part(team, x, &part);
        for (int i = 0; has_form && i < part.size; i++)
            has_form = comm_world_rank(&part, i) == comm_world_rank(team, member(x, i));
    }
    if (is_in && has_form)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "name the range that this rank is in",
                      "comm_range: %s, of %d ranks, on rank %d", text_of(x).text, team->size,
                      team->rank);
}

fsdp_status comm_subset(comm *c, const comm_ranks *mine, comm **out)
{
    const comm_team *team = &c->team;
    void *all = NULL;
    comm *child = calloc(1, sizeof *child);
    fsdp_status status = child != NULL
                             ? check_own(team, mine)
                             : fsdp_error(FSDP_ENOMEM, "", "comm_range: no memory for a group");
    if (status != FSDP_OK) {
        free(child);
        return transport_fail(transport_control(c->data), status);
    }
    status = comm_host_gather(c, "comm_range", mine, sizeof *mine, &all);
    IF_OK(status, check_subsets(team, all));
    free(all);
    IF_OK(status, split_into(c, mine, child));
    if (status == FSDP_ENOMEM || status == FSDP_EMISMATCH) /* ENOMEM may be local to this rank */
        transport_fail(transport_control(c->data), status);
    if (status == FSDP_OK)
        *out = child;
    else
        comm_free(child);
    return status;
}

fsdp_status comm_range(comm *c, int first, int step, int n, comm **out)
{
    return comm_subset(c, &(comm_ranks){first, step, n, 0, 1}, out);
}

/* ---- the job -------------------------------------------------------------------------------- */

/* If stderr is a pipe to a launcher, wait until it has read what this process wrote, and a moment
 * longer, so that it can print it. On MPI_Abort the launcher of MPICH 4.0.2 ends the job without
 * printing what it holds (seen in 1 of 60 aborts on a busy machine). If nobody reads the pipe, give
 * up after a second. */
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
        comm_hang_settle();
    for (transport_group *g = c != NULL ? c->data : NULL; g != NULL; g = g->below)
        if (g->table->abort != NULL)
            g->table->abort(g, exit_code);
    _exit(exit_code);
}

uint64_t comm_group_number(const comm *c)
{
    return c->team.number;
}
