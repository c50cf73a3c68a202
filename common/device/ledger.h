/* ledger.h -- counts memory by category: bytes now and at the peak.
 *
 *   ledger_create -> ledger_add, ledger_free_issued, ledger_sub ... ledger_read
 *   -> ledger_free
 *
 * There are two peaks. The *live* figures count a block from device_alloc until its stream reaches
 * the free (on an accelerator, until device_free if the same stream allocated the block), so they
 * depend on how far streams lag behind the host. The *issued* figures count a block from the call
 * of device_alloc to the call of device_free, so they depend only on the order of the calls and are
 * the same in every run, on every device.
 *
 * Every block of device_alloc is counted, so a peak is a fact and not an estimate. All functions
 * are thread-safe. */
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
    MEM_ACTIVATIONS,  /* tensors that forward keeps for backward, and scratch memory */
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
/* ledger_create -- an empty ledger; NULL: no memory. */
ledger *ledger_create(void);
/* ledger_free -- NULL is accepted. */
void ledger_free(ledger *l);
/* ledger_add -- add a block of `bytes` bytes to all figures. */
void ledger_add(ledger *l, mem_category c, size_t bytes);
/* ledger_free_issued -- the block's device_free was called: subtract it from the issued figures. */
void ledger_free_issued(ledger *l, mem_category c, size_t bytes);
/* ledger_sub -- subtract a block from the live figures; asserts that they are large enough. */
void ledger_sub(ledger *l, mem_category c, size_t bytes);
/* ledger_read -- a consistent copy of the figures. */
ledger_figures ledger_read(ledger *l);
/* ledger_reset_peaks -- set the peaks to the present figures. */
void ledger_reset_peaks(ledger *l);

EXTERN_C_END
