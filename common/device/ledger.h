/* ledger.h -- who holds how much memory: bytes now and at peak, by category.
 *
 *   ledger_create -> ledger_add, ledger_free_issued, ledger_sub ... ledger_read
 *   -> ledger_free
 *
 * There are two peaks. A block counts as live from the alloc to the moment when its stream reaches
 * the free; the number of live blocks then depends on how far streams lag behind the host.
 * The *issued* figures count a block from the call of device_alloc to the call of device_free, so
 * they depend on the order of the calls alone and are the same in every run, on every device.
 *
 * Everything that device_alloc hands out is entered here, so a peak is a fact and not an estimate.
 * All functions are thread-safe. */
#pragma once
#include <stddef.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

typedef enum mem_category {
    MEM_PARAMS_SHARD, /* the master copy of this rank's parameters */
    MEM_PARAMS_FULL,  /* gathered units */
    MEM_GRADS_SHARD,  /* reduced gradients and their partial sums */
    MEM_GRADS_FULL,   /* unreduced gradients of a unit */
    MEM_OPTIMIZER,    /* the optimizer's moments */
    MEM_ACTIVATIONS,  /* what forward keeps for backward, and scratch */
    MEM_COMM,         /* staging of collectives */
    MEM_OTHER,
    MEM_CATEGORIES
} mem_category;

typedef struct ledger ledger;

typedef struct ledger_figures {
    size_t live_bytes[MEM_CATEGORIES];
    size_t peak_bytes[MEM_CATEGORIES]; /* each category's own peak */
    size_t live_total_bytes;
    size_t peak_total_bytes; /* peak of the sum */
    size_t live_blocks;
    size_t issued_bytes[MEM_CATEGORIES], issued_peak_bytes[MEM_CATEGORIES];
    size_t issued_total_bytes, issued_peak_total_bytes;
} ledger_figures;

/* mem_category_name -- "params_shard", ...; asserts that c is a category. */
const char *mem_category_name(mem_category c);
/* ledger_create -- an empty ledger; NULL if there is no memory. */
ledger *ledger_create(void);
/* ledger_free -- NULL is accepted. */
void ledger_free(ledger *l);
/* ledger_add -- enter a block of `bytes` bytes. */
void ledger_add(ledger *l, mem_category c, size_t bytes);
/* ledger_free_issued -- the block's device_free was called: take it out of the issued figures. */
void ledger_free_issued(ledger *l, mem_category c, size_t bytes);
/* ledger_sub -- take a block out; asserts that the category holds as much. */
void ledger_sub(ledger *l, mem_category c, size_t bytes);
/* ledger_read -- a copy of the figures, all of one moment. */
ledger_figures ledger_read(ledger *l);
/* ledger_reset_peaks -- peaks start again from what is live now. */
void ledger_reset_peaks(ledger *l);

EXTERN_C_END
