/* limiter.c -- task 5.4: how many units may be gathered at a time. */
#include "common/device/device_calls.h"
#include "lab5_prefetch/prefetch.h"

fsdp_status limiter_acquire(limiter *l, bool ahead, bool *granted)
{
    *granted = false;
    /* SOLUTION BEGIN 5.4 */
    while (l->n_held + l->n_freed > l->limit && l->n_freed > 0) {
        TRY(event_sync(l->freed[l->first_freed]));
        l->first_freed = (l->first_freed + 1) % l->capacity;
        l->n_freed--;
    }
    *granted = !ahead || l->n_held <= l->limit;
    l->n_held += *granted;
    return FSDP_OK;
    /* SOLUTION END 5.4 */
}

fsdp_status limiter_release(limiter *l, stream *s)
{
    /* SOLUTION BEGIN 5.4 */
    l->n_held--;
    int at = (l->first_freed + l->n_freed++) % l->capacity;
    return event_record(l->freed[at], s);
    /* SOLUTION END 5.4 */
}
