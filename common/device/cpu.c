/* cpu.c -- the CPU as a device: "device memory" is host memory, a kernel is a function that a
 * stream calls (stream_launch_work), a copy is a memcpy in stream order.
 *
 *   cpu_open -> streams (cpu_stream.c), events (cpu_event.c), blocks (cpu_memory.c), copies (here)
 *   -> cpu_close
 *
 * The device owns its streams and its cache of blocks; callers own events and live blocks.
 *
 * cpu_open also opens devices whose memory the host must not touch (separate.h, guard.h). */
#include "common/base/dtype.h"
#include "common/device/cpu_impl.h"
#include <string.h>

/* ---- the device ----------------------------------------------------------------------------- */
void cpu_close(device *base)
{
    cpu_device *d = (cpu_device *)base;
    cpu_stream *s;
    /* Drain all queues before deleting any stream: a task may wait for a capture of another one. */
    TAILQ_FOREACH(s, &d->streams, link)
    {
        cpu_stream_drain(s);
    }
    while ((s = TAILQ_FIRST(&d->streams)) != NULL)
        cpu_stream_delete(s);
    cpu_pool_close(&d->pool);
    cpu_pool_close(&d->host_pool);
    cpu_schedule_close(d->schedule);
    pthread_mutex_destroy(&d->lock);
    device_delete(base);
}

static fsdp_status check_config(const device_config *config)
{
    if (config->index != 0)
        return fsdp_error(FSDP_EINVAL, "use index 0: a host has one cpu device",
                          "device_open: cpu index %d, expected 0", config->index);
    if (config->n_threads < 1)
        return fsdp_error(FSDP_EINVAL, "set n_threads to the cores each rank may use",
                          "device_open: n_threads %d, expected >= 1", config->n_threads);
    return FSDP_OK;
}

fsdp_status cpu_open(const device_config *config, device **out)
{
    const bool is_guarded = !config->backend->memory_is_host;
    TRY(check_config(config));
    cpu_device *d = device_new(config, sizeof *d);
    if (!d)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory for the device itself");
    pthread_mutex_init(&d->lock, NULL);
    TAILQ_INIT(&d->streams);
    cpu_pool_init(&d->pool, d->base.ledger, is_guarded);
    cpu_pool_init(&d->host_pool, d->base.host_ledger, false);
    bool scheduled = config->schedule_seed != 0;
    fsdp_status status = FSDP_OK;
    if (scheduled && !(d->schedule = cpu_schedule_open(config->schedule_seed)))
        status = fsdp_error(FSDP_ENOMEM, "", "device_open: no memory for the scheduler");
    stream_config compute = {.name = "compute", .n_threads = config->n_threads};
    if (status == FSDP_OK)
        status = cpu_stream_new(d, &compute, config->async_compute || scheduled || is_guarded,
                                &d->base.compute);
    if (status != FSDP_OK) {
        cpu_close(&d->base);
        return status;
    }
    *out = &d->base;
    return FSDP_OK;
}

/* The free memory of the system and the cache, which could be given back to the system; at most
 * what memory_limit_bytes leaves. */
size_t cpu_mem_available(device *base)
{
    cpu_device *d = (cpu_device *)base;
    size_t cached_bytes = cpu_pool_cached_bytes(&d->pool) + cpu_pool_cached_bytes(&d->host_pool);
    size_t host_bytes = host_mem_available(""), left_bytes = device_limit_left(base);
    size_t bytes = host_bytes > SIZE_MAX - cached_bytes ? SIZE_MAX : host_bytes + cached_bytes;
    return min_size(bytes, left_bytes);
}

size_t cpu_mem_reserved(device *base)
{
    cpu_pool *p = &((cpu_device *)base)->pool;
    if (!p->is_guarded)
        return 0;
    pthread_mutex_lock(&p->lock);
    size_t bytes = p->live_bytes + p->cached_bytes;
    pthread_mutex_unlock(&p->lock);
    return bytes;
}

/* ---- streams -------------------------------------------------------------------------------- */
fsdp_status cpu_stream_create(device *d, const stream_config *config, stream **out)
{
    return cpu_stream_new((cpu_device *)d, config, true, out);
}

void cpu_stream_free(stream *base)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_stream_drain(s); /* with a scheduler, s runs only while the host waits */
    cpu_stream_delete(s);
}

fsdp_status cpu_stream_sync(stream *base)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_stream_drain(s);
    return cpu_stream_status(s);
}

/* ---- moving and filling bytes --------------------------------------------------------------- */
static fsdp_status launch_move(stream *s, const device_act *act)
{
    return cpu_launch(
        s, &(launch_config){.fn = device_run_move, .args = act, .args_bytes = sizeof *act}, act);
}

/* The caller may reuse host_src at once: few bytes are copied into the queue; for many the host
 * waits. (CUDA's cudaMemcpyAsync from pageable memory behaves the same.) */
static fsdp_status upload_to_worker(cpu_stream *s, const device_act *act)
{
    const size_t staged_limit_bytes = (size_t)256 << 10;
    if (act->bytes > staged_limit_bytes) {
        TRY(launch_move(&s->base, act));
        return cpu_stream_sync(&s->base);
    }
    const launch_config l = {.fn = device_run_move, .args_bytes = sizeof *act + act->bytes};
    cpu_task *task = NULL;
    void *args = NULL;
    TRY(cpu_call_new(s, &l, act, &task, &args));
    device_act *staged = args;
    *staged = *act;
    staged->src = memcpy(staged + 1, act->src, act->bytes);
    cpu_stream_issue(s, task);
    return FSDP_OK;
}

fsdp_status cpu_move(stream *base, const device_act *act)
{
    cpu_stream *s = (cpu_stream *)base;
    if (act->kind == ACT_UPLOAD && s->is_worker)
        return upload_to_worker(s, act);
    return launch_move(base, act);
}

const device_backend device_cpu = {
    .name = "cpu", .memory_is_host = true, .runs_c = true, .open = cpu_open, CPU_BACKEND_CALLS};
