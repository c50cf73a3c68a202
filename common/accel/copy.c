/* copy.c -- copies and fills.
 *
 * The library copies between the device and pinned memory, asynchronously. Memory of the caller is
 * pageable; for a copy of pageable memory the library would make the host wait for the stream. So
 * an upload is copied to a pinned stage at once, and from there in stream order. A download is
 * copied to a stage, and then a host task copies it to the caller. Copies that are not aligned as
 * the library requires go through a stage too. A large transfer is cut into pieces of one stage.
 *
 * Stages are used in turn. The host waits only if the next stage is still in use, and pinned memory
 * is bounded (16 MiB of small stages, 64 MiB of large ones). */
#include "common/base/bytes_copy.h"
#include "common/accel/accel_impl.h"

#define SMALL_STAGE_BYTES ((size_t)64 << 10)
#define LARGE_STAGE_BYTES ((size_t)4 << 20)

/* ---- the host's part ------------------------------------------------------------------------- */

static fsdp_status move_by_host(accel_stream *s, device_act a)
{
    return accel_host_task(s, device_run_move, &a, sizeof a);
}

static fsdp_status copy_by_device(accel_stream *s, accel_copy_kind kind, void *dst, const void *src,
                                  size_t bytes)
{
    return accel_stream_check(s, accel_api_at(s)->copy(dst, src, bytes, kind, s->queue), "copy");
}

static fsdp_status fill(accel_stream *s, void *dst, unsigned char byte, size_t bytes)
{
    if (accel_is_host(accel_device_of(s->base.device), dst))
        return move_by_host(s, (device_act){.dst = dst, .bytes = bytes, .byte = byte});
    return accel_stream_check(s, accel_api_at(s)->fill(dst, byte, bytes, s->queue), "fill");
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* The next stage, at least `bytes` large, when its last use is over. */
static fsdp_status stage_get(accel_stream *s, size_t bytes, accel_kept **out)
{
    accel_device *d = accel_device_of(s->base.device);
    const bool is_small = bytes <= SMALL_STAGE_BYTES;
    accel_stages *of = is_small ? &d->small : &d->large;
    const unsigned n = is_small ? ACCEL_STAGES : ACCEL_LARGE_STAGES;
    accel_kept **at = &of->block[of->next++ % n];
    if (*at == NULL)
        TRY(accel_pinned_get(s, is_small ? SMALL_STAGE_BYTES : LARGE_STAGE_BYTES, USE_AS_STAGE,
                             at));
    else
        TRY(accel_wait(s, (*at)->used));
    *out = *at;
    return FSDP_OK;
}

/* How bytes are copied to a stage, or from it. */
typedef enum leg { AT_ONCE, BY_HOST_TASK, BY_DEVICE_UP, BY_DEVICE_DOWN } leg;

static fsdp_status leg_issue(accel_stream *s, leg how, void *dst, const void *src, size_t bytes)
{
    if (how == BY_HOST_TASK)
        return move_by_host(s, (device_act){.dst = dst, .src = src, .bytes = bytes});
    if (how != AT_ONCE)
        return copy_by_device(s, how == BY_DEVICE_UP ? ACCEL_UP : ACCEL_DOWN, dst, src, bytes);
    bytes_copy(dst, src, bytes);
    return FSDP_OK;
}

/* Copy through stages, one piece in each. */
static fsdp_status by_stages(accel_stream *s, const device_act *act, leg to_stage, leg from_stage)
{
    for (size_t at = 0; at < act->bytes; at += LARGE_STAGE_BYTES) {
        const size_t left = act->bytes - at;
        const size_t bytes = left < LARGE_STAGE_BYTES ? left : LARGE_STAGE_BYTES;
        accel_kept *stage;
        TRY(stage_get(s, bytes, &stage));
        TRY(leg_issue(s, to_stage, stage->ptr, (const char *)act->src + at, bytes));
        TRY(leg_issue(s, from_stage, (char *)act->dst + at, stage->ptr, bytes));
        accel_kept_used(s, stage);
    }
    return FSDP_OK;
}

/* src and dst are each on the device or from device_alloc_host. A host task copies from host to
 * host: the library would copy at once instead of in stream order. */
static fsdp_status copy(accel_stream *s, const device_act *act)
{
    accel_device *d = accel_device_of(s->base.device);
    const bool from_host = accel_is_host(d, act->src), to_host = accel_is_host(d, act->dst);
    const size_t align = d->api->copy_align_bytes;
    if (from_host && to_host)
        return move_by_host(s, *act);
    if (!from_host && !to_host && align > 0 &&
        ((uintptr_t)act->dst % align != 0 || (uintptr_t)act->src % align != 0))
        return by_stages(s, act, BY_DEVICE_DOWN, BY_DEVICE_UP);
    if (from_host && accel_is_pageable(d, act->src))
        return by_stages(s, act, BY_HOST_TASK, BY_DEVICE_UP);
    if (accel_is_pageable(d, act->dst))
        return by_stages(s, act, BY_DEVICE_DOWN, BY_HOST_TASK);
    const accel_copy_kind kind = from_host ? ACCEL_UP : to_host ? ACCEL_DOWN : ACCEL_WITHIN;
    return copy_by_device(s, kind, act->dst, act->src, act->bytes);
}

static fsdp_status move(accel_stream *s, const device_act *act)
{
    accel_device *d = accel_device_of(s->base.device);
    switch (act->kind) {
    case ACT_FILL:
        return fill(s, act->dst, act->byte, act->bytes);
    case ACT_UPLOAD:
        return by_stages(s, act, AT_ONCE, accel_is_host(d, act->dst) ? BY_HOST_TASK : BY_DEVICE_UP);
    case ACT_DOWNLOAD:
        if (accel_is_host(d, act->src)) /* the host task can read src directly */
            return move_by_host(s, *act);
        if (!accel_is_host(d, act->dst))
            return by_stages(s, act, BY_DEVICE_DOWN, BY_HOST_TASK);
        return copy(s, act);
    default:
        return copy(s, act);
    }
}

fsdp_status accel_move(stream *base, const device_act *act)
{
    accel_stream *s = accel_stream_at(base);
    TRY(accel_device_status(accel_device_of(s->base.device)));
    accel_stream_recent(s, act->name, NULL);
    accel_watched *watched = accel_watch_begin(s, act);
    fsdp_status status = move(s, act);
    accel_watch_end(s, watched, status);
    return status;
}
