/* prices.h -- what operations took in a run, for --plan-prices: the table that --profile wrote.
 *
 *   prices_read -> prices_have -> prices_seconds */
#pragma once
#include "common/observe/profile.h"
#include "common/observe/timeline_stats.h"

typedef struct price {
    char name[TIMELINE_NAME_BYTES];        /* "matmul" */
    double call_s, call_flops, call_bytes; /* of one call, on average */
} price;

typedef struct prices {
    virtual_link upload, download; /* zeroed: the profile has none */
    size_t n;
    price rows[PROFILE_MAX_ROWS]; /* [n] one for each operation and shape */
} prices;

/* prices_read -- the operations of a profile-rank-R.csv, which has no more than PROFILE_MAX_ROWS.
 *   errors  FSDP_EIO no such file; FSDP_EINVAL no operation in it */
fsdp_status prices_read(const char *path, prices *out);
/* prices_have -- whether each operation of a timeline has a price.
 *   errors  FSDP_EINVAL, with the name of one that has none */
fsdp_status prices_have(const prices *p, const timeline_view *v);
/* prices_seconds -- by the row of the item's operation whose calls are nearest in FLOP and bytes,
 * in proportion to FLOP, or to bytes if it has none. Copies and fills take no time: a profile does
 * not say how many bytes they move. */
double prices_seconds(const prices *p, const timeline_item *item);
