/* memory.h -- the memory of the stand-ins' device, and host memory that the library knows, as a
 * table of address ranges. Copies look up their ends in this table.
 *
 * After each block of the device comes a guard word, which is checked when the block is freed.
 * Fresh and freed memory is NaN. */
#pragma once
#include "tests/sim/core/streams.h"

EXTERN_C_BEGIN

/* SIM_PAGEABLE: memory that the library does not know. SIM_REGISTERED: pinned by the library, but
 * allocated by the caller. SIM_MAPPED: the device's view of SIM_PINNED host memory. */
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
    size_t held_bytes; /* what the block counts for in the device's memory, at least bytes */
} sim_range;

/* sim_range_at -- the range that contains ptr. sim_range_holds -- whether r contains all of ptr
 * [bytes]. */
sim_range sim_range_at(const void *ptr);
bool sim_range_holds(const sim_range *r, const void *ptr, size_t bytes);
/* sim_range_add -- add host memory; false if part of it is in the table. sim_range_remove -- remove
 * the range of this kind that begins at ptr; false if there is none. */
bool sim_range_add(void *ptr, size_t bytes, sim_memory_kind kind);
bool sim_range_remove(void *ptr, sim_memory_kind kind);
/* sim_range_each -- call see(self, range) for each range. see must not call functions of this
 * header. */
void sim_range_each(void (*see)(void *self, const sim_range *r), void *self);
/* sim_is_pinned -- whether a copy may read or write the memory while the host goes on. */
bool sim_is_pinned(const void *ptr, size_t bytes);

/* sim_memory_bytes -- memory of the device: FSDP_SIM_MEMORY_MIB. sim_held_bytes -- what its blocks
 * take. A freed block counts until its stream reaches the free. */
size_t sim_memory_bytes(void);
size_t sim_held_bytes(void);

/* sim_block_get -- allocate a block of the device in the order of s. It takes held_bytes >= bytes.
 *   errors  FSDP_ENOMEM the device is full; errors of the stream */
fsdp_status sim_block_get(stream *s, size_t bytes, size_t held_bytes, void **out);
/* sim_block_put -- free a block in the order of s. *known: whether ptr is a block; if not, nothing
 * happens. */
fsdp_status sim_block_put(stream *s, void *ptr, bool *known);

/* sim_copy, sim_fill -- copy or fill in the order of s, without checks. sim_copy_now, sim_fill_now
 * -- the functions that the stream runs, with these arguments. */
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
