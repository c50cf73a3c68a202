/* ledger.c -- see ledger.h. One mutex guards one set of figures. */
#include "common/device/ledger.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ledger {
    pthread_mutex_t lock;
    ledger_figures now;
};

const char *mem_category_name(mem_category c)
{
    static const char *const NAMES[MEM_CATEGORIES] = {
        [MEM_PARAMS_SHARD] = "params_shard",
        [MEM_PARAMS_FULL] = "params_full",
        [MEM_GRADS_SHARD] = "grads_shard",
        [MEM_GRADS_FULL] = "grads_full",
        [MEM_OPTIMIZER] = "optimizer",
        [MEM_ACTIVATIONS] = "activations",
        [MEM_COMM] = "comm",
        [MEM_OTHER] = "other",
    };
    FSDP_ASSERT((int)c >= 0 && c < MEM_CATEGORIES);
    return NAMES[c];
}

ledger *ledger_create(void)
{
    ledger *l = calloc(1, sizeof *l);
    if (l)
        pthread_mutex_init(&l->lock, NULL);
    return l;
}

void ledger_free(ledger *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void ledger_add(ledger *l, mem_category c, size_t bytes)
{
    FSDP_ASSERT((int)c >= 0 && c < MEM_CATEGORIES);
    pthread_mutex_lock(&l->lock);
    ledger_figures *f = &l->now;
    f->live_bytes[c] += bytes;
    f->live_total_bytes += bytes;
    f->live_blocks++;
    f->issued_bytes[c] += bytes;
    f->issued_total_bytes += bytes;
    if (f->issued_bytes[c] > f->issued_peak_bytes[c])
        f->issued_peak_bytes[c] = f->issued_bytes[c];
    if (f->issued_total_bytes > f->issued_peak_total_bytes)
        f->issued_peak_total_bytes = f->issued_total_bytes;
    if (f->live_bytes[c] > f->peak_bytes[c])
        f->peak_bytes[c] = f->live_bytes[c];
    if (f->live_total_bytes > f->peak_total_bytes)
        f->peak_total_bytes = f->live_total_bytes;
    pthread_mutex_unlock(&l->lock);
}

void ledger_free_issued(ledger *l, mem_category c, size_t bytes)
{
    FSDP_ASSERT((int)c >= 0 && c < MEM_CATEGORIES);
    pthread_mutex_lock(&l->lock);
    ledger_figures *f = &l->now;
    FSDP_ASSERT(f->issued_bytes[c] >= bytes);
    f->issued_bytes[c] -= bytes;
    f->issued_total_bytes -= bytes;
    pthread_mutex_unlock(&l->lock);
}

void ledger_sub(ledger *l, mem_category c, size_t bytes)
{
    FSDP_ASSERT((int)c >= 0 && c < MEM_CATEGORIES);
    pthread_mutex_lock(&l->lock);
    ledger_figures *f = &l->now;
    FSDP_ASSERT(f->live_bytes[c] >= bytes && f->live_blocks > 0);
    f->live_bytes[c] -= bytes;
    f->live_total_bytes -= bytes;
    f->live_blocks--;
    pthread_mutex_unlock(&l->lock);
}

ledger_figures ledger_read(ledger *l)
{
    pthread_mutex_lock(&l->lock);
    ledger_figures f = l->now;
    pthread_mutex_unlock(&l->lock);
    return f;
}

void ledger_reset_peaks(ledger *l)
{
    pthread_mutex_lock(&l->lock);
    ledger_figures *f = &l->now;
    memcpy(f->peak_bytes, f->live_bytes, sizeof f->peak_bytes);
    f->peak_total_bytes = f->live_total_bytes;
    memcpy(f->issued_peak_bytes, f->issued_bytes, sizeof f->issued_peak_bytes);
    f->issued_peak_total_bytes = f->issued_total_bytes;
    pthread_mutex_unlock(&l->lock);
}
