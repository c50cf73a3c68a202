/* cpu.c -- the CPU as a device: "device memory" is host memory, a kernel is a function that a
 * stream calls (stream_launch), a copy is a memcpy in stream order.
 *
 *   cpu_open -> streams (cpu_stream.c), blocks (cpu_memory.c), copies (here) -> cpu_close
 *
 * The device owns its streams and its cache of blocks; callers own events and live blocks.       */
#include "common/base/bytes_copy.h"
#include "common/device/cpu_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- the device ----------------------------------------------------------------------------- */
static void cpu_close(device *base)
{
    cpu_device *d = (cpu_device *)base;
    cpu_stream *s;
    /* All queues first: a task of one stream may wait for a capture of another. */
    TAILQ_FOREACH(s, &d->streams, link)
    {
        cpu_stream_drain(s);
    }
    while ((s = TAILQ_FIRST(&d->streams)) != NULL) {
        TAILQ_REMOVE(&d->streams, s, link);
        cpu_stream_delete(s);
    }
    cpu_pool_close(&d->pool);
    pthread_mutex_destroy(&d->lock);
    ledger_free(d->base.ledger);
    free(d);
}

static fsdp_status add_stream(cpu_device *d, const char *name, bool is_worker, int n_threads,
                              stream **out)
{
    cpu_stream *s = NULL;
    TRY(cpu_stream_new(d, name, is_worker, n_threads, &s));
    pthread_mutex_lock(&d->lock);
    TAILQ_INSERT_TAIL(&d->streams, s, link);
    pthread_mutex_unlock(&d->lock);
    *out = &s->base;
    return FSDP_OK;
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

static fsdp_status cpu_open(const device_config *config, device **out)
{
    TRY(check_config(config));
    cpu_device *d = calloc(1, sizeof *d);
    ledger *l = ledger_create();
    if (!d || !l) {
        free(d);
        ledger_free(l);
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory for the device itself");
    }
    d->base = (device){.backend = &device_backend_cpu, .config = *config, .ledger = l};
    pthread_mutex_init(&d->lock, NULL);
    TAILQ_INIT(&d->streams);
    cpu_pool_init(&d->pool);
    fsdp_status status =
        add_stream(d, "compute", config->async_compute, config->n_threads, &d->base.compute);
    if (status != FSDP_OK) {
        cpu_close(&d->base);
        return status;
    }
    *out = &d->base;
    return FSDP_OK;
}

/* What the system still has, and what the cache would give back to it. */
static size_t cpu_mem_available(device *base)
{
    size_t cached_bytes = cpu_pool_cached_bytes(&((cpu_device *)base)->pool);
    size_t host_bytes = host_mem_available("");
    return host_bytes > SIZE_MAX - cached_bytes ? SIZE_MAX : host_bytes + cached_bytes;
}

/* ---- streams -------------------------------------------------------------------------------- */
static fsdp_status cpu_stream_create(device *d, const char *name, stream **out)
{
    return add_stream((cpu_device *)d, name, true, 1, out);
}

static void cpu_stream_free(stream *base)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_device *d = (cpu_device *)base->device;
    pthread_mutex_lock(&d->lock);
    TAILQ_REMOVE(&d->streams, s, link);
    pthread_mutex_unlock(&d->lock);
    cpu_stream_delete(s);
}

static fsdp_status cpu_stream_sync(stream *base)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_stream_drain(s);
    return cpu_stream_status(s);
}

/* ---- moving and filling bytes --------------------------------------------------------------- */
typedef struct copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} copy_args;

static fsdp_status run_copy(void *args, int n_threads)
{
    (void)n_threads;
    copy_args *a = args;
    bytes_copy(a->dst, a->src, a->bytes);
    return FSDP_OK;
}

static fsdp_status cpu_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return cpu_launch(s, run_copy, &(copy_args){dst, src, bytes}, sizeof(copy_args));
}

typedef struct upload_args {
    void *dst;
    size_t bytes;
    char data[];
} upload_args;

static fsdp_status run_staged_upload(void *args, int n_threads)
{
    (void)n_threads;
    upload_args *a = args;
    memcpy(a->dst, a->data, a->bytes);
    return FSDP_OK;
}

/* The caller may reuse host_src at once: what is small travels in the queue, for more the host
 * waits. (CUDA's cudaMemcpyAsync from pageable memory behaves the same.) */
static fsdp_status cpu_upload(stream *base, void *dst, const void *host_src, size_t bytes)
{
    const size_t staged_limit_bytes = (size_t)256 << 10;
    cpu_stream *s = (cpu_stream *)base;
    if (!s->is_worker)
        return cpu_copy(base, dst, host_src, bytes);
    if (bytes > staged_limit_bytes) {
        TRY(cpu_copy(base, dst, host_src, bytes));
        return cpu_stream_sync(base);
    }
    TRY(cpu_stream_status(s));
    cpu_task *task = NULL;
    void *args = NULL;
    TRY(cpu_call_new(run_staged_upload, sizeof(upload_args) + bytes, &task, &args));
    upload_args *a = args;
    a->dst = dst;
    a->bytes = bytes;
    memcpy(a->data, host_src, bytes);
    cpu_stream_issue(s, task);
    return FSDP_OK;
}

typedef struct fill_args {
    void *dst;
    size_t bytes;
    unsigned char byte;
} fill_args;

static fsdp_status run_fill(void *args, int n_threads)
{
    (void)n_threads;
    fill_args *a = args;
    memset(a->dst, a->byte, a->bytes);
    return FSDP_OK;
}

static fsdp_status cpu_fill(stream *s, void *dst, unsigned char byte, size_t bytes)
{
    return cpu_launch(s, run_fill, &(fill_args){dst, bytes, byte}, sizeof(fill_args));
}

const device_backend device_backend_cpu = {
    .open = cpu_open,
    .close = cpu_close,
    .stream_create = cpu_stream_create,
    .stream_free = cpu_stream_free,
    .stream_sync = cpu_stream_sync,
    .event_create = cpu_event_create,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .stream_wait_event = cpu_stream_wait_event,
    .event_sync = cpu_event_sync,
    .event_done = cpu_event_done,
    .alloc = cpu_alloc,
    .alloc_shared = cpu_alloc_shared,
    .share_find = cpu_share_find,
    .share_fd = cpu_share_fd,
    .free = cpu_free,
    .copy = cpu_copy,
    .upload = cpu_upload,
    .download = cpu_copy,
    .fill = cpu_fill,
    .launch = cpu_launch,
    .mem_available = cpu_mem_available,
};
