/* acl_memory.c -- memory and copies of the stand-in. Nothing here waits for the caller's streams: a
 * block is there at once, a freed one is NaN at once, and a copy without a stream sees what is
 * there. Copies of a stream go on behind the call, but for those of pageable memory. */
#include <stdlib.h>
#include <string.h>
#include "tests/sim/ascend/acl_impl.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

bool sim_acl_is_device(const void *ptr, size_t bytes)
{
    const sim_range r = sim_range_at(ptr);
    return r.kind == SIM_OF_DEVICE && sim_range_holds(&r, ptr, bytes);
}

/* The host waits for the stand-in's own stream, which has no other work. */
static aclError memory_wait(fsdp_status status, const char *call)
{
    if (status == FSDP_OK)
        status = stream_sync(acl_memory_queue()->s);
    return acl_status(status, call);
}

/* [CANN aclrtMalloc] rounds up to 32 bytes, and adds 32. */
static aclError block_get(void **ptr, size_t bytes, aclrtMemMallocPolicy policy, size_t more_bytes,
                          const char *call)
{
    acl_context *c;
    aclError error = acl_enter(call, &c);
    if (error != ACL_SUCCESS)
        return error;
    if (ptr == NULL || bytes == 0 || (unsigned)policy > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: pointer %p, %zu bytes, policy %d", call,
                            (void *)ptr, bytes, (int)policy);
    const size_t held_bytes =
        bytes < SIZE_MAX - 64 ? (bytes + 31) / 32 * 32 + more_bytes : SIZE_MAX;
    const fsdp_status status = sim_block_get(acl_memory_queue()->s, bytes, held_bytes, ptr);
    if (status == FSDP_ENOMEM)
        return sim_acl_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s: %zu bytes, %zu of %zu are in use",
                            call, bytes, sim_held_bytes(), sim_memory_bytes());
    return memory_wait(status, call);
}

aclError aclrtMalloc(void **ptr, size_t bytes, aclrtMemMallocPolicy policy)
{
    return block_get(ptr, bytes, policy, 32, "aclrtMalloc");
}

aclError aclrtMallocAlign32(void **ptr, size_t bytes, aclrtMemMallocPolicy policy)
{
    return block_get(ptr, bytes, policy, 0, "aclrtMallocAlign32");
}

aclError aclrtFree(void *ptr)
{
    bool known;
    acl_context *c;
    aclError error = acl_enter("aclrtFree", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (ptr == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtFree of NULL");
    fsdp_status status = sim_block_put(acl_memory_queue()->s, ptr, &known);
    if (!known)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtFree of %p, which is no block", ptr);
    return memory_wait(status, "aclrtFree");
}

aclError aclrtMallocHost(void **ptr, size_t bytes)
{
    acl_context *c;
    aclError error = acl_enter("aclrtMallocHost", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (ptr == NULL || bytes == 0)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtMallocHost: pointer %p, %zu bytes",
                            (void *)ptr, bytes);
    if (posix_memalign(ptr, 4096, bytes) != 0 || !sim_range_add(*ptr, bytes, SIM_PINNED))
        return sim_acl_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMallocHost: no %zu bytes", bytes);
    memset(*ptr, 0xFF, bytes);
    return ACL_SUCCESS;
}

aclError aclrtFreeHost(void *ptr)
{
    acl_context *c;
    aclError error = acl_enter("aclrtFreeHost", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (ptr == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtFreeHost of NULL");
    if (!sim_range_remove(ptr, SIM_PINNED))
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID,
                            "aclrtFreeHost of %p, which aclrtMallocHost did not give", ptr);
    free(ptr);
    return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *available, size_t *total)
{
    acl_context *c;
    aclError error = acl_enter("aclrtGetMemInfo", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (available == NULL || total == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtGetMemInfo: a pointer is NULL");
    if (attr != ACL_HBM_MEM && attr != ACL_HBM_MEM_HUGE && attr != ACL_HBM_MEM_NORMAL)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtGetMemInfo: the NPU's memory is HBM");
    *total = sim_memory_bytes();
    *available = *total - sim_held_bytes();
    return ACL_SUCCESS;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    void *dst;
    const void *src;
    size_t bytes;
    bool from_device, to_device, blocks;
} copy;

/* What a call says of the room at dst is true: not more than its block has from there on. */
static aclError room_check(const char *call, const char *max, const void *dst, size_t max_bytes)
{
    const sim_range r = sim_range_at(dst);
    if (r.kind == SIM_PAGEABLE || sim_range_holds(&r, dst, max_bytes))
        return ACL_SUCCESS;
    return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID,
                        "%s: %s %zu, but the block of %zu has %zu bytes from %p on", call, max,
                        max_bytes, r.bytes, r.bytes - (size_t)((const char *)dst - r.ptr), dst);
}

static aclError side_check(const char *call, const char *side, const void *ptr, size_t bytes,
                           bool on_device)
{
    const sim_range r = sim_range_at(ptr);
    if ((r.kind == SIM_OF_DEVICE) != on_device)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %s %p is not of the %s", call, side,
                            ptr, on_device ? "NPU" : "host");
    if (r.kind != SIM_PAGEABLE && !sim_range_holds(&r, ptr, bytes))
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID,
                            "%s: %s, %zu bytes, ends behind its block of %zu", call, side, bytes,
                            r.bytes);
    return ACL_SUCCESS;
}

static aclError copy_check(const char *call, copy *c, size_t dst_max, aclrtMemcpyKind kind)
{
    if (c->dst == NULL || c->src == NULL || (unsigned)kind > ACL_MEMCPY_DEFAULT)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: dst %p, src %p, kind %d", call, c->dst,
                            c->src, (int)kind);
    if (c->bytes > dst_max)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count %zu is above destMax %zu", call,
                            c->bytes, dst_max);
    const sim_memory_kind to = sim_range_at(c->dst).kind, from = sim_range_at(c->src).kind;
    c->blocks = to == SIM_PAGEABLE || from == SIM_PAGEABLE;
    c->to_device = kind == ACL_MEMCPY_DEFAULT
                       ? to == SIM_OF_DEVICE
                       : kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    c->from_device = kind == ACL_MEMCPY_DEFAULT
                         ? from == SIM_OF_DEVICE
                         : kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
    aclError error = side_check(call, "dst", c->dst, c->bytes, c->to_device);
    if (error == ACL_SUCCESS)
        error = side_check(call, "src", c->src, c->bytes, c->from_device);
    return error == ACL_SUCCESS ? room_check(call, "destMax", c->dst, dst_max) : error;
}

aclError aclrtMemcpy(void *dst, size_t dst_max, const void *src, size_t bytes, aclrtMemcpyKind kind)
{
    copy c = {.dst = dst, .src = src, .bytes = bytes};
    acl_context *context;
    aclError error = acl_enter("aclrtMemcpy", &context);
    if (error == ACL_SUCCESS && bytes > 0)
        error = copy_check("aclrtMemcpy", &c, dst_max, kind);
    if (error != ACL_SUCCESS || bytes == 0)
        return error;
    return memory_wait(sim_copy(acl_memory_queue()->s, dst, src, bytes), "aclrtMemcpy");
}

static fsdp_status run_copy(void *args, int n_threads)
{
    const copy *c = args;
    (void)n_threads;
    memcpy(c->dst, c->src, c->bytes);
    return FSDP_OK;
}

/* [CANN aclrtMemcpyAsync] asks for addresses that are multiples of 64. It is looked at within the
 * NPU, where programs find that out. */
static aclError async_check(const char *call, const copy *c)
{
    enum { ALIGN_BYTES = 64 };
    if (!c->to_device && !c->from_device)
        return sim_acl_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s from host to host", call);
    if (c->to_device && c->from_device &&
        ((uintptr_t)c->dst % ALIGN_BYTES != 0 || (uintptr_t)c->src % ALIGN_BYTES != 0))
        return sim_acl_fail(ACL_ERROR_RT_ADDR_UNALIGNED,
                            "%s within the NPU: dst %p, src %p, expected multiples of %d", call,
                            c->dst, c->src, ALIGN_BYTES);
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *dst, size_t dst_max, const void *src, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream s)
{
    static const char CALL[] = "aclrtMemcpyAsync";
    copy c = {.dst = dst, .src = src, .bytes = bytes};
    acl_stream *q;
    aclError error = acl_stream_working(s, CALL, &q);
    if (error == ACL_SUCCESS && bytes > 0)
        error = copy_check(CALL, &c, dst_max, kind);
    if (error == ACL_SUCCESS && bytes > 0)
        error = async_check(CALL, &c);
    if (error != ACL_SUCCESS || bytes == 0)
        return error;
    error =
        acl_issue(q, CALL, &(launch_config){.fn = run_copy, .args = &c, .args_bytes = sizeof c});
    if (error == ACL_SUCCESS && c.blocks)
        error = acl_status(stream_sync(q->q.s), CALL);
    return error;
}

typedef struct fill {
    void *dst;
    int32_t byte;
    size_t bytes;
} fill;

static aclError fill_check(const char *call, const fill *f, size_t most)
{
    if (f->dst == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: NULL", call);
    if (f->bytes > most)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count %zu is above maxCount %zu", call,
                            f->bytes, most);
    if (!sim_acl_is_device(f->dst, f->bytes) && !sim_is_pinned(f->dst, f->bytes))
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID,
                            "%s: %p, %zu bytes, is not in one block of the NPU", call, f->dst,
                            f->bytes);
    return room_check(call, "maxCount", f->dst, most);
}

aclError aclrtMemset(void *dst, size_t most, int32_t byte, size_t bytes)
{
    acl_context *c;
    aclError error = acl_enter("aclrtMemset", &c);
    if (error == ACL_SUCCESS && bytes > 0)
        error = fill_check("aclrtMemset", &(fill){dst, byte, bytes}, most);
    if (error != ACL_SUCCESS || bytes == 0)
        return error;
    return memory_wait(sim_fill(acl_memory_queue()->s, dst, byte, bytes), "aclrtMemset");
}

static fsdp_status run_fill(void *args, int n_threads)
{
    const fill *f = args;
    (void)n_threads;
    memset(f->dst, f->byte, f->bytes);
    return FSDP_OK;
}

aclError aclrtMemsetAsync(void *dst, size_t most, int32_t byte, size_t bytes, aclrtStream s)
{
    static const char CALL[] = "aclrtMemsetAsync";
    const fill f = {dst, byte, bytes};
    acl_stream *q;
    aclError error = acl_stream_working(s, CALL, &q);
    if (error == ACL_SUCCESS && bytes > 0)
        error = fill_check(CALL, &f, most);
    if (error != ACL_SUCCESS || bytes == 0)
        return error;
    return acl_issue(q, CALL, &(launch_config){.fn = run_fill, .args = &f, .args_bytes = sizeof f});
}
