/* bucket.h -- task 5.7, a star: neighbouring units that communicate as one.
 *
 * Every collective costs a latency, however few bytes it moves. Many small units pay it many times.
 * A bucket is several units merged into one before anything is laid out: one flat array, so one
 * gather and one reduction, and nothing is copied into or out of a buffer. The price is memory:
 * all parameters of a bucket are gathered at the same time. */
#pragma once
#include "lab2_forward/fsdp_setup.h"

/* bucket_assign -- put units into buckets, for fsdp_config.merge. Units 1 ... n_units - 1 are taken
 * in order. Each joins the bucket of the unit before it if that bucket then has at most max_elems
 * elements; otherwise it begins a new bucket. So a unit larger than max_elems has a bucket of its
 * own. The root, unit 0, is bucket 0 and stays alone, because it is gathered all the time.
 * Worked example: max_elems 10, elems 50 4 5 3 12 1 -> buckets 0 1 1 2 3 4.
 *   max_elems   of a bucket
 *   elems       [n_units] elements of each unit's parameters; a sum of them may exceed SIZE_MAX
 *   bucket_of   [n_units]
 *   *n_buckets  1 + the last bucket's number
 *   errors      FSDP_EINVAL: each unit other than the root has more than max_elems
 *   source      [SimpleFSDP] */
fsdp_status bucket_assign(size_t max_elems, const size_t *elems, int n_units, int *bucket_of,
                          int *n_buckets);
