/* prices.h -- measured times of operations for --plan-prices, from a table that --profile wrote.
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
    virtual_link upload, download; /* zeroed if the profile has no copies */
    size_t n;
    price rows[PROFILE_MAX_ROWS]; /* [n] one row for each operation and shape */
} prices;

/* prices_read -- read the operations of a profile-rank-R.csv; rows beyond PROFILE_MAX_ROWS are
 * ignored.
 *   errors  FSDP_EIO: the file cannot be read; FSDP_EINVAL: it has no operation */
fsdp_status prices_read(const char *path, prices *out);
/* prices_have -- check that each operation of a timeline has a price.
 *   errors  FSDP_EINVAL naming an operation without one */
fsdp_status prices_have(const prices *p, const timeline_view *v);
/* prices_seconds -- the time of an item: the time of its operation's row with the nearest FLOPs and
 * bytes, scaled by FLOPs, or by bytes if the row has no FLOPs. Fills and copies inside the device
 * take no time, because a profile does not have their bytes. */
double prices_seconds(const prices *p, const timeline_item *item);
