/* memory.h -- the memory of the stand-ins' device, and the host's that its library knows: every
 * range by its address. So a copy can be told from what it names.
 *
 * Behind each block of the device stands a word that nobody may touch; it is looked at when the
 * block is freed. Fresh and freed memory is NaN. */
#pragma once
#include "tests/sim/core/streams.h"

EXTERN_C_BEGIN

/* SIM_PAGEABLE: none that the library knows. SIM_REGISTERED: pinned, but not the library's own.
 * SIM_MAPPED: the device's view of memory that is SIM_PINNED in the host's. */
typedef enum sim_memory_kind {
    SIM_PAGEABLE,
    SIM_OF_DEVICE,
    SIM_PINNED,
    SIM_REGISTERED,
    SIM_MAPPED
} sim_memory_kind;
typedef struct sim_range {
    char *ptr;
    size_t bytes;
    sim_memory_kind kind;
    size_t held_bytes; /* what it takes of the device's memory, bytes or more */
} sim_range;

/* sim_range_at -- the range that ptr is in. sim_range_holds: ptr [bytes] too, whole. */
sim_range sim_range_at(const void *ptr);
bool sim_range_holds(const sim_range *r, const void *ptr, size_t bytes);
/* sim_range_add -- of the host; false: part of it is known. sim_range_remove: was ptr the beginning
 * of such a range, which is no more? */
bool sim_range_add(void *ptr, size_t bytes, sim_memory_kind kind);
bool sim_range_remove(void *ptr, sim_memory_kind kind);
/* sim_range_each -- call see(self, range) for each; see calls nothing of this header. */
void sim_range_each(void (*see)(void *self, const sim_range *r), void *self);
/* sim_is_pinned -- may a copy read or write it while the host goes on? */
bool sim_is_pinned(const void *ptr, size_t bytes);

/* sim_memory_bytes -- of the device: FSDP_SIM_MEMORY_MIB. sim_held_bytes: of its blocks; a freed
 * one counts until its stream comes to the free. */
size_t sim_memory_bytes(void);
size_t sim_held_bytes(void);

/* sim_block_get -- a block of the device, in order of s; it takes held_bytes >= bytes.
 *   errors  FSDP_ENOMEM the device has no more; the stream's */
fsdp_status sim_block_get(stream *s, size_t bytes, size_t held_bytes, void **out);
/* sim_block_put -- in order of s. *known: whether ptr is one; else nothing is done. */
fsdp_status sim_block_put(stream *s, void *ptr, bool *known);

/* sim_copy, sim_fill -- in order of s; nothing is checked. sim_copy_now, sim_fill_now: what then
 * runs, with these arguments. */
typedef struct sim_copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} sim_copy_args;
typedef struct sim_fill_args {
    void *dst;
    int byte;
    size_t bytes;
} sim_fill_args;
fsdp_status sim_copy_now(void *args, int n_threads);
fsdp_status sim_fill_now(void *args, int n_threads);
fsdp_status sim_copy(stream *s, void *dst, const void *src, size_t bytes);
fsdp_status sim_fill(stream *s, void *dst, int byte, size_t bytes);

EXTERN_C_END
