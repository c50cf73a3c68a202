/* bucket.c -- task 5.7: which units are merged. */
#include "lab5_prefetch/bucket.h"

static fsdp_status nothing_fits(size_t max_elems, size_t smallest)
{
    return fsdp_error(
        FSDP_EINVAL, "pass a larger --bucket, or --bucket block",
        "--bucket: got %zu parameters, expected at least the %zu of the smallest unit", max_elems,
        smallest);
}

fsdp_status bucket_assign(size_t max_elems, const size_t *elems, int n_units, int *bucket_of,
                          int *n_buckets)
{
    size_t smallest = SIZE_MAX;
    for (int u = 1; u < n_units; u++)
        smallest = elems[u] < smallest ? elems[u] : smallest;
    if (n_units > 1 && smallest > max_elems)
        return nothing_fits(max_elems, smallest);
    /* SOLUTION BEGIN 5.7 */
    size_t in_bucket = 0;
    int bucket = 0;
    bucket_of[0] = 0;
    for (int u = 1; u < n_units; u++) {
        bool fits = u > 1 && elems[u] <= max_elems && in_bucket <= max_elems - elems[u];
        in_bucket = fits ? in_bucket + elems[u] : elems[u];
        bucket += !fits;
        bucket_of[u] = bucket;
    }
    *n_buckets = bucket + 1;
    return FSDP_OK;
    /* SOLUTION END 5.7 */
}
