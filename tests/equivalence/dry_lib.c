/* dry_lib.c -- see dry_lib.h.
 *
 * What must be equal: of each category the peak in the order of issue, of each operation calls and
 * bytes. Peaks in time must be at most those of the dry run, and where compute is inline those of
 * the categories that no communication stream holds back are equal.
 *
 * An accelerator's libraries take workspaces of their own, and its transport may take staging: of
 * its memory, what the engine itself holds is compared. */
#include "tests/equivalence/dry_lib.h"
#include <string.h>
#include "common/base/under_asan.h"
#include "common/device/device_impl.h"
#include "common/device/dry.h"
#include "tests/unit/target_lib.h"

typedef struct usage {
    ledger_figures memory, host; /* host: zero where device memory is the host's */
    comm_stats traffic;
} usage;

static fsdp_status run_measured(device *dev, comm *group, const run_config *c, run_result *out,
                                usage *u)
{
    bool apart = device_host_ledger(dev) != device_ledger(dev);
    TRY(stream_sync(device_compute_stream(dev))); /* what an earlier run has freed is gone */
    ledger_reset_peaks(device_ledger(dev));
    ledger_reset_peaks(device_host_ledger(dev));
    comm_job_stats_reset(group);
    TRY(run_training(dev, group, c, out));
    u->memory = ledger_read(device_ledger(dev));
    u->host = apart ? ledger_read(device_host_ledger(dev)) : (ledger_figures){0};
    u->traffic = comm_job_stats_read(group);
    return FSDP_OK;
}

static dry_kind kind_of(const device *dev)
{
    if (device_memory_is_host(dev))
        return DRY_CPU;
    return device_runs_c(dev) ? DRY_SEPARATE : DRY_POOL;
}

static bool runs_ahead(const device *dev)
{
    return dev->config.async_compute || dev->config.schedule_seed != 0;
}

/* A dry group knows no hosts: what calls hold is not compared. */
static bool is_over_hosts(const comm *group)
{
    return strncmp(comm_backend_name(group), "shm+mpi", 7) == 0;
}

static fsdp_status run_dry(const device *dev, const comm *group, const run_config *c, usage *u)
{
    const char *over = comm_backend_name(group);
    comm_dry_moves moves = strncmp(over, "mpi", 3) == 0 || is_over_hosts(group) ? DRY_BRINGS
                           : target_adds_itself(group)                          ? DRY_NATIVE
                                                                                : DRY_SHOWS;
    run_config own = *c;
    device *dry = NULL;
    comm *alone = NULL;
    run_result none = {0};
    if (!device_runs_c(dev))
        own.ops = ops_cpu_fast();
    fsdp_status status = device_open(&(device_config){.backend = device_dry(kind_of(dev)),
                                                      .n_threads = dev->config.n_threads,
                                                      .async_compute = runs_ahead(dev)},
                                     &dry);
    if (status == FSDP_OK)
        status = comm_open(dry,
                           &(comm_config){.backend = COMM_DRY,
                                          .dry = {comm_rank(group), comm_size(group), moves},
                                          .sums = own.ops->sums},
                           &alone);
    if (status == FSDP_OK)
        status = run_measured(dry, alone, &own, &none, u);
    run_result_free(&none);
    comm_close(alone);
    device_close(dry);
    return status;
}

static bool is_engines(int k)
{
    return k != MEM_ACTIVATIONS && k != MEM_COMM && k != MEM_OTHER;
}

/* Whether the host, which works for an inline compute stream, decides how long a block lives. */
static bool is_exact(const device *dev, int k)
{
    bool is_inline = device_memory_is_host(dev) && !runs_ahead(dev);
    return is_inline && (k == MEM_ACTIVATIONS || (is_engines(k) && k != MEM_GRADS_SHARD));
}

static void compare_memory(const device *dev, const ledger_figures *got, const ledger_figures *dry,
                           char *differs, size_t chars)
{
    for (int k = 0; k < MEM_CATEGORIES && *differs == '\0'; k++) {
        size_t most = dry->peak_bytes[k], peak = got->peak_bytes[k];
        const char *name = mem_category_name((mem_category)k);
        if (!device_runs_c(dev) && k == MEM_OTHER) /* workspaces of its libraries */
            continue;
        if (got->issued_peak_bytes[k] != dry->issued_peak_bytes[k])
            snprintf(differs, chars, "%s as issued: %zu bytes, dry %zu", name,
                     got->issued_peak_bytes[k], dry->issued_peak_bytes[k]);
        else if (!UNDER_ASAN && (peak > most || (is_exact(dev, k) && peak != most)))
            snprintf(differs, chars, "%s at its peak: %zu bytes, dry %zu", name, peak, most);
    }
}

fsdp_status dry_compare_training(device *dev, comm *group, const run_config *config,
                                 run_result *out, char *differs, size_t chars)
{
    usage got, dry;
    TRY(run_measured(dev, group, config, out, &got));
    TRY(run_dry(dev, group, config, &dry));
    for (int op = 0; op < COMM_OPS && *differs == '\0'; op++)
        if (got.traffic.calls[op] != dry.traffic.calls[op] ||
            got.traffic.bytes_sent[op] != dry.traffic.bytes_sent[op])
            snprintf(differs, chars, "%s: %llu calls send %llu bytes, dry %llu and %llu",
                     comm_op_name((comm_op)op), (unsigned long long)got.traffic.calls[op],
                     (unsigned long long)got.traffic.bytes_sent[op],
                     (unsigned long long)dry.traffic.calls[op],
                     (unsigned long long)dry.traffic.bytes_sent[op]);
    if (is_over_hosts(group))
        got.memory.issued_peak_bytes[MEM_COMM] = got.memory.peak_bytes[MEM_COMM] =
            dry.memory.issued_peak_bytes[MEM_COMM] = dry.memory.peak_bytes[MEM_COMM] = 0;
    compare_memory(dev, &got.memory, &dry.memory, differs, chars);
    if (device_runs_c(dev) && !is_over_hosts(group))
        compare_memory(dev, &got.host, &dry.host, differs, chars);
    return FSDP_OK;
}
