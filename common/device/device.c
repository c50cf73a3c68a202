/* device.c -- the functions of device.h: check the arguments, tell the watches, call the backend.
 *
 *   device_open gets the backend in the config; every other call finds it in the object it is
 *   given. Objects belong to the backend that made them. */
#include "common/device/device_impl.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/bytes_copy.h"
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/openmp_settings.h"
#include "common/base/page.h"
#include "common/base/units.h"
#include "common/device/host_share.h"

fsdp_status device_open(const device_config *config, device **out)
{
    FSDP_ASSERT(config && config->backend && out);
    *out = NULL;
    return config->backend->open(config, out);
}

void *device_new(const device_config *config, size_t bytes)
{
    device *d = calloc(1, bytes);
    if (d == NULL)
        return NULL;
    d->backend = config->backend;
    d->config = *config;
    d->ledger = ledger_create();
    d->host_ledger = d->backend->memory_is_host ? d->ledger : ledger_create();
    if (d->ledger != NULL && d->host_ledger != NULL)
        return d;
    device_delete(d);
    return NULL;
}

void device_delete(device *d)
{
    if (d->host_ledger != d->ledger)
        ledger_free(d->host_ledger);
    ledger_free(d->ledger);
    free(d);
}

const char *device_name(const device *d)
{
    return d->backend->name;
}

bool device_memory_is_host(const device *d)
{
    return d->backend->memory_is_host;
}

bool device_runs_c(const device *d)
{
    return d->backend->runs_c;
}

stream *device_compute_stream(device *d)
{
    return d->compute;
}

fsdp_status device_set_threads(device *d, int n_threads)
{
    if (n_threads < 1)
        return fsdp_error(FSDP_EINVAL, "", "device_set_threads: %d threads, expected 1 or more",
                          n_threads);
    TRY(stream_sync(d->compute));
    d->config.n_threads = d->compute->n_threads = n_threads;
    return FSDP_OK;
}

double device_now_s(const device *d)
{
    return d != NULL && d->backend->stands_still ? 0 : clock_now_s();
}

ledger *device_ledger(device *d)
{
    return d->ledger;
}

ledger *device_host_ledger(device *d)
{
    return d->host_ledger;
}

size_t device_mem_available(device *d)
{
    return d->backend->mem_available(d);
}

size_t device_mem_reserved(device *d)
{
    return d->backend->mem_reserved ? d->backend->mem_reserved(d) : 0;
}

/* ---- watching ------------------------------------------------------------------------------- */
void device_set_watch(device *d, const device_watch *watch)
{
    d->watch = watch ? *watch : (device_watch){0};
}

void device_set_second_watch(device *d, const device_watch *watch)
{
    d->second_watch = watch ? *watch : (device_watch){0};
}

void device_set_scope(device *d, const char *scope, const char *phase)
{
    d->scope = scope;
    d->phase = phase;
}

/* Tell both watches of a call. If d->watch returns a token, it is told again after the act. */
static void tell_issued(device_act *act)
{
    const device *d = act->stream ? act->stream->device : act->event->device;
    act->scope = d->scope;
    act->phase = d->phase;
    if (d->second_watch.issued)
        (void)d->second_watch.issued(d->second_watch.self, act);
    act->token = d->watch.issued ? d->watch.issued(d->watch.self, act) : 0;
}

void device_close(device *d)
{
    if (!d)
        return;
    tell_issued(&(device_act){.kind = ACT_STREAM_FREE, .stream = d->compute});
    d->backend->close(d);
}

/* ---- streams -------------------------------------------------------------------------------- */
void stream_init(stream *s, device *d, const stream_config *config)
{
    *s = (stream){.device = d, .n_threads = config->n_threads > 0 ? config->n_threads : 1};
    snprintf(s->name, sizeof s->name, "%s", config->name);
}

device *stream_device(stream *s)
{
    return s->device;
}

const char *stream_name(const stream *s)
{
    return s->name;
}

fsdp_status stream_create(device *d, const stream_config *config, stream **out)
{
    FSDP_ASSERT(d && config && config->name && config->n_threads >= 0 && out);
    *out = NULL;
    return d->backend->stream_create(d, config, out);
}

void stream_free(stream *s)
{
    if (!s)
        return;
    FSDP_ASSERT(s != s->device->compute && "the compute stream belongs to its device");
    tell_issued(&(device_act){.kind = ACT_STREAM_FREE, .stream = s});
    s->device->backend->stream_free(s);
}

/* The host waits for s or, if s is NULL, for e. The watch gets the times of begin and end. */
static fsdp_status host_sync(const device *d, stream *s, event *e)
{
    const device_watch *w = &d->watch;
    device_act act = {.kind = ACT_SYNC, .stream = s, .event = e};
    tell_issued(&act);
    act.begin_s = act.token != 0 ? device_now_s(d) : 0;
    fsdp_status status = s ? d->backend->stream_sync(s) : d->backend->event_sync(e);
    if (act.token != 0 && w->ran) {
        act.end_s = device_now_s(d);
        w->ran(w->self, &act);
    }
    return status;
}

fsdp_status stream_sync(stream *s)
{
    return host_sync(s->device, s, NULL);
}

int device_thread_start(pthread_t *out, void *(*main)(void *), void *arg, const char *name)
{
    sigset_t most, before;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&most);
    sigdelset(&most, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int err = pthread_create(out, &attr, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (err == 0) {
        char cut[16]; /* Linux allows 15 characters */
        snprintf(cut, sizeof cut, "%.15s", name);
        pthread_setname_np(*out, cut);
    }
    return err;
}

/* ---- events --------------------------------------------------------------------------------- */
fsdp_status event_create(device *d, event **out)
{
    FSDP_ASSERT(d && out);
    *out = NULL;
    return d->backend->event_create(d, false, out);
}

fsdp_status event_create_timed(device *d, event **out)
{
    FSDP_ASSERT(d && out);
    *out = NULL;
    return d->backend->event_create(d, true, out);
}

void event_free(event *e)
{
    if (!e)
        return;
    tell_issued(&(device_act){.kind = ACT_EVENT_FREE, .event = e});
    e->device->backend->event_free(e);
}

fsdp_status event_record(event *e, stream *s)
{
    FSDP_ASSERT(e->device == s->device);
    tell_issued(&(device_act){.kind = ACT_RECORD, .stream = s, .event = e});
    return s->device->backend->event_record(e, s);
}

fsdp_status stream_wait_event(stream *s, event *e)
{
    FSDP_ASSERT(e->device == s->device);
    device_act act = {.kind = ACT_WAIT, .stream = s, .event = e};
    tell_issued(&act);
    return s->device->backend->stream_wait_event(s, e, &act);
}

fsdp_status event_sync(event *e)
{
    return host_sync(e->device, NULL, e);
}

bool event_done(event *e)
{
    return e->device->backend->event_done(e);
}

fsdp_status event_elapsed_s(event *begin, event *end, double *out)
{
    FSDP_ASSERT(begin->device == end->device && out);
    *out = 0;
    if (!begin->timed || !end->timed)
        return fsdp_error(FSDP_ESTATE, "make both with event_create_timed",
                          "event_elapsed_s: the %s event keeps no time",
                          begin->timed ? "second" : "first");
    return begin->device->backend->event_elapsed_s(begin, end, out);
}

/* ---- memory --------------------------------------------------------------------------------- */
/* Write ": params_full 1.2 GB, activations 340 MB": the categories that hold memory. */
static void holders_print(const ledger_figures *f, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int c = 0; c < MEM_CATEGORIES && used < text_bytes; c++) {
        char bytes[24];
        if (f->live_bytes[c] == 0)
            continue;
        format_bytes(f->live_bytes[c], bytes, sizeof bytes);
        int n = snprintf(text + used, text_bytes - used, "%s%s %s", used == 0 ? ": " : ", ",
                         mem_category_name((mem_category)c), bytes);
        used += n > 0 ? (size_t)n : 0;
    }
}

size_t device_limit_left(const device *d)
{
    const size_t limit_bytes = d->config.memory_limit_bytes;
    if (limit_bytes == 0)
        return SIZE_MAX;
    const size_t live_bytes = ledger_read(d->ledger).live_total_bytes;
    return live_bytes < limit_bytes ? limit_bytes - live_bytes : 0;
}

fsdp_status device_alloc_failed(ledger *l, const mem_request *want, int err)
{
    ledger_figures f = ledger_read(l);
    char bytes[24], live[24], peak[24], holders[320];
    holders_print(&f, holders, sizeof holders);
    format_bytes(want->bytes, bytes, sizeof bytes);
    format_bytes(f.live_total_bytes, live, sizeof live);
    format_bytes(f.peak_total_bytes, peak, sizeof peak);
    const char *hint = "use a smaller --batch-size, --seq-len or model, or more ranks";
    return fsdp_error(FSDP_ENOMEM, page_hint(err, hint),
                      "device_alloc: no memory for %zu bytes (%s) of '%s' (%s)%s%s; the device "
                      "holds %zu bytes (%s) in %zu blocks, %s at its peak%s",
                      want->bytes, bytes, want->label, mem_category_name(want->category),
                      err != 0 ? ": " : "", err != 0 ? strerror(err) : "", f.live_total_bytes, live,
                      f.live_blocks, peak, holders);
}

/* Allocate a block, tell the watches, and with debug_fill fill the block with NaN. */
static fsdp_status alloc(stream *s, mem_request want, void **out)
{
    FSDP_ASSERT(s && want.label && out);
    *out = NULL;
    void *ptr;
    TRY(s->device->backend->alloc(s, &want, &ptr));
    tell_issued(&(device_act){.kind = ACT_ALLOC,
                              .stream = s,
                              .dst = ptr,
                              .bytes = want.bytes,
                              .label = want.label,
                              .category = want.category,
                              .on_host = want.on_host && !device_memory_is_host(s->device)});
    fsdp_status status = device_poison(s, ptr, want.bytes);
    if (status == FSDP_OK)
        *out = ptr;
    else
        device_free(s, ptr);
    return status;
}

fsdp_status device_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                         void **out)
{
    return alloc(s, (mem_request){category, bytes, label, .on_host = false}, out);
}

fsdp_status device_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                              void **out)
{
    return alloc(s, (mem_request){category, bytes, label, .on_host = true}, out);
}

bool device_share_find(device *d, const void *ptr, size_t bytes, device_share *out)
{
    return d->backend->share_find && d->backend->share_find(d, ptr, bytes, out);
}

int device_share_fd(device *d)
{
    if (d->backend->share_find)
        return host_share_fd();
    errno = ENOTSUP;
    return -1;
}

static fsdp_status alloc_f32(stream *s, mem_request want, size_t elems, float **out)
{
    void *ptr = NULL;
    *out = NULL;
    TRY(size_mul(elems, sizeof(float), want.label, &want.bytes));
    TRY(alloc(s, want, &ptr));
    *out = ptr;
    return FSDP_OK;
}

fsdp_status device_alloc_f32(stream *s, mem_category category, size_t elems, const char *label,
                             float **out)
{
    return alloc_f32(s, (mem_request){.category = category, .label = label}, elems, out);
}

fsdp_status device_alloc_host_f32(stream *s, mem_category category, size_t elems, const char *label,
                                  float **out)
{
    const mem_request want = {.category = category, .label = label, .on_host = true};
    return alloc_f32(s, want, elems, out);
}

void device_free(stream *s, void *ptr)
{
    if (!ptr)
        return;
    tell_issued(&(device_act){.kind = ACT_FREE, .stream = s, .dst = ptr});
    s->device->backend->free(s, ptr);
}

/* ---- moving and filling --------------------------------------------------------------------- */
fsdp_status device_run_move(void *args, int n_threads)
{
    const device_act *a = args;
    (void)n_threads;
    if (a->src)
        bytes_copy(a->dst, a->src, a->bytes);
    else
        memset(a->dst, a->byte, a->bytes);
    return FSDP_OK;
}

/* Move act.bytes on stream s; act.name is set here, by kind. */
static fsdp_status move(stream *s, device_act act)
{
    static const char *const NAMES[] = {[ACT_COPY] = "copy",
                                        [ACT_UPLOAD] = "upload",
                                        [ACT_DOWNLOAD] = "download",
                                        [ACT_FILL] = "fill"};
    if (act.bytes == 0)
        return FSDP_OK;
    act.stream = s;
    act.name = NAMES[act.kind];
    FSDP_ASSERT(act.dst && (act.src || act.kind == ACT_FILL));
    tell_issued(&act);
    return s->device->backend->move(s, &act);
}

fsdp_status device_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return move(s, (device_act){.kind = ACT_COPY, .dst = dst, .src = src, .bytes = bytes});
}

fsdp_status device_upload(stream *s, void *dst, const void *host_src, size_t bytes)
{
    return move(s, (device_act){.kind = ACT_UPLOAD, .dst = dst, .src = host_src, .bytes = bytes});
}

fsdp_status device_download(stream *s, void *host_dst, const void *src, size_t bytes)
{
    return move(s, (device_act){.kind = ACT_DOWNLOAD, .dst = host_dst, .src = src, .bytes = bytes});
}

fsdp_status device_zero(stream *s, void *dst, size_t bytes)
{
    return move(s, (device_act){.kind = ACT_FILL, .dst = dst, .bytes = bytes});
}

fsdp_status device_poison(stream *s, void *dst, size_t bytes)
{
    if (!s->device->config.debug_fill)
        return FSDP_OK;
    return move(s, (device_act){.kind = ACT_FILL, .dst = dst, .bytes = bytes, .byte = 0xFF});
}

/* ---- launching ------------------------------------------------------------------------------ */
fsdp_status stream_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes)
{
    return stream_launch_work(s,
                              &(launch_config){.fn = fn, .args = args, .args_bytes = args_bytes});
}

fsdp_status stream_launch_work(stream *s, const launch_config *l)
{
    FSDP_ASSERT(l->fn && (l->args || l->args_bytes == 0));
    FSDP_ASSERT(l->issues ? !device_runs_c(s->device) : device_runs_c(s->device) || l->on_host);
    device_act act = {.kind = ACT_LAUNCH,
                      .stream = s,
                      .work = l->work,
                      .name = l->name,
                      .label = l->label,
                      .accesses = l->accesses,
                      .n_accesses = l->n_accesses};
    tell_issued(&act);
    act.label = NULL; /* the caller's string is no longer valid when the watch is told again */
    return s->device->backend->launch(s, l, &act);
}

/* ---- making --------------------------------------------------------------------------------- */
enum { MOST_MADE_BYTES = 64 }; /* of arguments */

typedef struct made_args {
    device_make_fn make;
    void *dst;
    _Alignas(max_align_t) char args[MOST_MADE_BYTES];
} made_args;

static fsdp_status run_made(void *args, int n_threads)
{
    const made_args *a = args;
    (void)n_threads;
    return a->make(a->args, a->dst);
}

static fsdp_status make_and_upload(stream *s, const device_made *what, void *dst, size_t bytes)
{
    void *host = malloc(bytes + 1);
    if (host == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory for %zu bytes", what->name, bytes);
    fsdp_status status = what->make(what->args, host);
    if (status == FSDP_OK)
        status = device_upload(s, dst, host, bytes);
    if (status == FSDP_OK)
        status = stream_sync(s);
    free(host);
    return status;
}

fsdp_status device_make(stream *s, const device_made *what, void *dst, size_t bytes)
{
    FSDP_ASSERT(what->args_bytes <= MOST_MADE_BYTES);
    if (!device_runs_c(s->device))
        return make_and_upload(s, what, dst, bytes);
    made_args a = {.make = what->make, .dst = dst};
    if (what->args_bytes > 0)
        memcpy(a.args, what->args, what->args_bytes);
    return stream_launch_work(
        s, &(launch_config){.fn = run_made,
                            .args = &a,
                            .args_bytes = sizeof a,
                            .name = what->name,
                            .accesses = &(mem_access){.ptr = dst, .bytes = bytes, .writes = true},
                            .n_accesses = 1});
}
