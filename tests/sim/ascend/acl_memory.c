/* acl_memory.c -- memory and copies of the stand-in. Nothing here waits for the caller's streams: a
 * new block is usable at once, a freed block is NaN at once, and a copy without a stream reads the
 * present contents. A copy on a stream runs after the call returns, unless one side is pageable
 * memory. */
#include <stdlib.h>
#include <string.h>
#include "tests/sim/ascend/acl_impl.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

bool sim_acl_is_device(const void *ptr, size_t bytes)
{
    const sim_range r = sim_range_at(ptr);
    return r.kind == SIM_OF_DEVICE && sim_range_holds(&r, ptr, bytes);
}

/* Wait for the stand-in's own queue, which only does this file's work. */
static aclError memory_wait(fsdp_status status, const char *call)
{
    if (status == FSDP_OK)
        status = stream_sync(acl_memory_queue()->s);
    return acl_status(status, call);
}

/* [CANN aclrtMalloc] rounds up to a multiple of 32 bytes and adds 32. */
aclError aclrtMalloc(void **ptr, size_t bytes, aclrtMemMallocPolicy policy)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(ptr == NULL || bytes == 0 || (unsigned)policy > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
            ACL_ERROR_INVALID_PARAM, __func__, "pointer %p, %zu bytes, policy %d", (void *)ptr,
            bytes, (int)policy);
    const size_t held_bytes = bytes < SIZE_MAX - 64 ? (bytes + 31) / 32 * 32 + 32 : SIZE_MAX;
    const fsdp_status status = sim_block_get(acl_memory_queue()->s, bytes, held_bytes, ptr);
    FAIL_IF(status == FSDP_ENOMEM, ACL_ERROR_RT_MEMORY_ALLOCATION, __func__,
            "%zu bytes, %zu of %zu are in use", bytes, sim_held_bytes(), sim_memory_bytes());
    return memory_wait(status, __func__);
}

aclError aclrtFree(void *ptr)
{
    bool known;
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(ptr == NULL, ACL_ERROR_INVALID_PARAM, __func__, "NULL");
    fsdp_status status = sim_block_put(acl_memory_queue()->s, ptr, &known);
    FAIL_IF(!known, ACL_ERROR_RT_PARAM_INVALID, __func__, "%p, which is no block", ptr);
    return memory_wait(status, __func__);
}

aclError aclrtMallocHost(void **ptr, size_t bytes)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(ptr == NULL || bytes == 0, ACL_ERROR_INVALID_PARAM, __func__, "pointer %p, %zu bytes",
            (void *)ptr, bytes);
    FAIL_IF(posix_memalign(ptr, 4096, bytes) != 0 || !sim_range_add(*ptr, bytes, SIM_PINNED),
            ACL_ERROR_RT_MEMORY_ALLOCATION, __func__, "no %zu bytes", bytes);
    memset(*ptr, 0xFF, bytes);
    return ACL_SUCCESS;
}

aclError aclrtFreeHost(void *ptr)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(ptr == NULL, ACL_ERROR_INVALID_PARAM, __func__, "NULL");
    FAIL_IF(!sim_range_remove(ptr, SIM_PINNED), ACL_ERROR_RT_PARAM_INVALID, __func__,
            "%p, which aclrtMallocHost did not give", ptr);
    free(ptr);
    return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *available, size_t *total)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(available == NULL || total == NULL, ACL_ERROR_INVALID_PARAM, __func__,
            "a pointer is NULL");
    FAIL_IF(attr != ACL_HBM_MEM && attr != ACL_HBM_MEM_HUGE && attr != ACL_HBM_MEM_NORMAL,
            ACL_ERROR_RT_PARAM_INVALID, __func__, "the NPU's memory is HBM");
    *total = sim_memory_bytes();
    *available = *total - sim_held_bytes();
    return ACL_SUCCESS;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    sim_copy_args args;
    bool from_device, to_device, blocks;
} copy;

/* Check that the room the caller claims at dst is no more than the block has from dst on. */
static aclError room_check(const char *call, const char *max, const void *dst, size_t max_bytes)
{
    const sim_range r = sim_range_at(dst);
    FAIL_IF(r.kind != SIM_PAGEABLE && !sim_range_holds(&r, dst, max_bytes),
            ACL_ERROR_RT_PARAM_INVALID, call,
            "%s %zu, but the block of %zu has %zu bytes from %p on", max, max_bytes, r.bytes,
            r.bytes - (size_t)((const char *)dst - r.ptr), dst);
    return ACL_SUCCESS;
}

static aclError side_check(const char *call, const char *side, const void *ptr, size_t bytes,
                           bool on_device)
{
    const sim_range r = sim_range_at(ptr);
    FAIL_IF((r.kind == SIM_OF_DEVICE) != on_device, ACL_ERROR_RT_PARAM_INVALID, call,
            "%s %p is not of the %s", side, ptr, on_device ? "NPU" : "host");
    FAIL_IF(r.kind != SIM_PAGEABLE && !sim_range_holds(&r, ptr, bytes), ACL_ERROR_RT_PARAM_INVALID,
            call, "%s, %zu bytes, ends after its block of %zu", side, bytes, r.bytes);
    return ACL_SUCCESS;
}

static aclError copy_check(const char *call, copy *c, size_t dst_max, aclrtMemcpyKind kind)
{
    const bool told = kind != ACL_MEMCPY_DEFAULT;
    FAIL_IF(c->args.dst == NULL || c->args.src == NULL || (unsigned)kind > ACL_MEMCPY_DEFAULT,
            ACL_ERROR_INVALID_PARAM, call, "dst %p, src %p, kind %d", c->args.dst, c->args.src,
            (int)kind);
    FAIL_IF(c->args.bytes > dst_max, ACL_ERROR_RT_PARAM_INVALID, call,
            "count %zu is above destMax %zu", c->args.bytes, dst_max);
    const sim_memory_kind to = sim_range_at(c->args.dst).kind,
                          from = sim_range_at(c->args.src).kind;
    c->blocks = to == SIM_PAGEABLE || from == SIM_PAGEABLE;
    c->to_device = told ? kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE
                        : to == SIM_OF_DEVICE;
    c->from_device = told ? kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE
                          : from == SIM_OF_DEVICE;
    TRY_ACL(side_check(call, "dst", c->args.dst, c->args.bytes, c->to_device));
    TRY_ACL(side_check(call, "src", c->args.src, c->args.bytes, c->from_device));
    return room_check(call, "destMax", c->args.dst, dst_max);
}

aclError aclrtMemcpy(void *dst, size_t dst_max, const void *src, size_t bytes, aclrtMemcpyKind kind)
{
    copy c = {.args = {dst, src, bytes}};
    TRY_ACL(acl_enter(__func__, NULL));
    if (bytes == 0)
        return ACL_SUCCESS;
    TRY_ACL(copy_check(__func__, &c, dst_max, kind));
    return memory_wait(sim_copy(acl_memory_queue()->s, dst, src, bytes), __func__);
}

/* [CANN aclrtMemcpyAsync] asks for addresses that are multiples of 64. Only copies within the NPU
 * are checked. */
static aclError async_check(const char *call, const copy *c)
{
    enum { ALIGN_BYTES = 64 };
    FAIL_IF(!c->to_device && !c->from_device, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, call,
            "from host to host");
    FAIL_IF(c->to_device && c->from_device &&
                ((uintptr_t)c->args.dst % ALIGN_BYTES != 0 ||
                 (uintptr_t)c->args.src % ALIGN_BYTES != 0),
            ACL_ERROR_RT_ADDR_UNALIGNED, call,
            "within the NPU: dst %p, src %p, expected multiples of %d", c->args.dst, c->args.src,
            ALIGN_BYTES);
    return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *dst, size_t dst_max, const void *src, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream s)
{
    copy c = {.args = {dst, src, bytes}};
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    if (bytes == 0)
        return ACL_SUCCESS;
    TRY_ACL(copy_check(__func__, &c, dst_max, kind));
    TRY_ACL(async_check(__func__, &c));
    TRY_ACL(sim_acl_launch(s, __func__, sim_copy_now, &c.args, sizeof c.args));
    return c.blocks ? acl_status(stream_sync(q->q.s), __func__) : ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void *dst, size_t most, int32_t byte, size_t bytes, aclrtStream s)
{
    const sim_fill_args f = {dst, byte, bytes};
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    if (bytes == 0)
        return ACL_SUCCESS;
    FAIL_IF(dst == NULL, ACL_ERROR_INVALID_PARAM, __func__, "NULL");
    FAIL_IF(bytes > most, ACL_ERROR_RT_PARAM_INVALID, __func__, "count %zu is above maxCount %zu",
            bytes, most);
    FAIL_IF(!sim_acl_is_device(dst, bytes) && !sim_is_pinned(dst, bytes),
            ACL_ERROR_RT_PARAM_INVALID, __func__, "%p, %zu bytes, is not in one block of the NPU",
            dst, bytes);
    TRY_ACL(room_check(__func__, "maxCount", dst, most));
    return sim_acl_launch(s, __func__, sim_fill_now, &f, sizeof f);
}
