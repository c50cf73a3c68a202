/* device.c -- the backend-independent front of device.h: checks what every backend would check the
 * same way, then calls the backend.
 *
 *   device_open picks the backend by config->kind; every other call finds it in the object it is
 *   given. Objects belong to the backend that made them. */
#include "common/device/device_impl.h"
#include "common/base/dtype.h"

fsdp_status device_open(const device_config *config, device **out)
{
    FSDP_ASSERT(config && out);
    *out = NULL;
    switch (config->kind) {
    case DEVICE_CPU:
        return device_backend_cpu.open(config, out);
    case DEVICE_CUDA:
        return fsdp_error(FSDP_ESKIP,
                          "build with the CUDA toolkit and NCCL installed, or pass "
                          "--device cpu",
                          "device_open: this build has no cuda backend");
    case DEVICE_NPU:
        return fsdp_error(FSDP_ESKIP,
                          "build with CANN (ASCEND_TOOLKIT_HOME set), or pass "
                          "--device cpu",
                          "device_open: this build has no npu backend");
    }
    return fsdp_error(FSDP_EINVAL, "pass --device cpu, cuda or npu",
                      "device_open: unknown device kind %d", (int)config->kind);
}

void device_close(device *d)
{
    if (d)
        d->backend->close(d);
}

device_kind device_get_kind(const device *d)
{
    return d->config.kind;
}

stream *device_compute_stream(device *d)
{
    return d->compute;
}

ledger *device_ledger(device *d)
{
    return d->ledger;
}

size_t device_mem_available(device *d)
{
    return d->backend->mem_available(d);
}

/* ---- streams -------------------------------------------------------------------------------- */
device *stream_device(stream *s)
{
    return s->device;
}

int stream_threads(const stream *s)
{
    return s->n_threads;
}

fsdp_status stream_create(device *d, const char *name, stream **out)
{
    FSDP_ASSERT(d && name && out);
    *out = NULL;
    return d->backend->stream_create(d, name, out);
}

void stream_free(stream *s)
{
    if (!s)
        return;
    FSDP_ASSERT(s != s->device->compute && "the compute stream belongs to its device");
    s->device->backend->stream_free(s);
}

fsdp_status stream_sync(stream *s)
{
    return s->device->backend->stream_sync(s);
}

/* ---- events --------------------------------------------------------------------------------- */
fsdp_status event_create(device *d, event **out)
{
    FSDP_ASSERT(d && out);
    *out = NULL;
    return d->backend->event_create(d, out);
}

void event_free(event *e)
{
    if (e)
        e->device->backend->event_free(e);
}

fsdp_status event_record(event *e, stream *s)
{
    FSDP_ASSERT(e->device == s->device);
    return s->device->backend->event_record(e, s);
}

fsdp_status stream_wait_event(stream *s, event *e)
{
    FSDP_ASSERT(e->device == s->device);
    return s->device->backend->stream_wait_event(s, e);
}

fsdp_status event_sync(event *e)
{
    return e->device->backend->event_sync(e);
}

bool event_done(event *e)
{
    return e->device->backend->event_done(e);
}

/* ---- memory --------------------------------------------------------------------------------- */
fsdp_status device_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                         void **out)
{
    FSDP_ASSERT(s && label && out);
    FSDP_ASSERT((int)category >= 0 && category < MEM_CATEGORIES);
    *out = NULL;
    return s->device->backend->alloc(s, category, bytes, label, out);
}

fsdp_status device_alloc_shared(stream *s, mem_category category, size_t bytes, const char *label,
                                void **out)
{
    if (!s->device->backend->alloc_shared)
        return device_alloc(s, category, bytes, label, out);
    FSDP_ASSERT(label && out && (int)category >= 0 && category < MEM_CATEGORIES);
    *out = NULL;
    return s->device->backend->alloc_shared(s, category, bytes, label, out);
}

bool device_share_find(device *d, const void *ptr, size_t bytes, device_share *out)
{
    return d->backend->share_find && d->backend->share_find(d, ptr, bytes, out);
}

int device_share_fd(device *d)
{
    return d->backend->share_fd ? d->backend->share_fd(d) : -1;
}

fsdp_status device_alloc_f32(stream *s, mem_category category, size_t elems, const char *label,
                             float **out)
{
    *out = NULL;
    size_t bytes = 0;
    TRY(size_mul(elems, sizeof(float), label, &bytes));
    void *ptr = NULL;
    TRY(device_alloc(s, category, bytes, label, &ptr));
    *out = ptr;
    return FSDP_OK;
}

void device_free(stream *s, void *ptr)
{
    if (ptr)
        s->device->backend->free(s, ptr);
}

/* ---- moving and filling; nothing to do for 0 bytes, and then pointers may be NULL ----------- */
fsdp_status device_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    FSDP_ASSERT(dst && src);
    return s->device->backend->copy(s, dst, src, bytes);
}

fsdp_status device_upload(stream *s, void *dst, const void *host_src, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    FSDP_ASSERT(dst && host_src);
    return s->device->backend->upload(s, dst, host_src, bytes);
}

fsdp_status device_download(stream *s, void *host_dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    FSDP_ASSERT(host_dst && src);
    return s->device->backend->download(s, host_dst, src, bytes);
}

fsdp_status device_zero(stream *s, void *dst, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    FSDP_ASSERT(dst);
    return s->device->backend->fill(s, dst, 0, bytes);
}

fsdp_status device_poison(stream *s, void *dst, size_t bytes)
{
    if (bytes == 0 || !s->device->config.debug_fill)
        return FSDP_OK;
    FSDP_ASSERT(dst);
    return s->device->backend->fill(s, dst, 0xFF, bytes);
}

fsdp_status stream_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes)
{
    FSDP_ASSERT(fn && (args || args_bytes == 0));
    FSDP_ASSERT(s->device->backend->launch && "stream_launch is for CPU streams");
    return s->device->backend->launch(s, fn, args, args_bytes);
}
