/* prices.c -- see prices.h. */
#include "trainer/prices.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/read_file.h"
#include "common/base/units.h"

enum { MOST_BYTES = 1 << 20 /* PROFILE_MAX_ROWS rows are 100 kB */ };
static const char HINT[] = "pass a profile-rank-R.csv, which --profile DIR writes into DIR";

static bool is_within(double x, double least, double most)
{
    return x >= least && x <= most; /* false for NaN */
}

/* Parse "compute,matmul 256x64x256 TN,9,0.0005,...": total calls, seconds, FLOPs and bytes; or
 * "roof,upload,,1.2e-05,,,,2.5e+10,,": latency and rate of copies. Other lines are ignored. Returns
 * whether the numbers are in their ranges. */
static bool parse_row(const char *line, prices *out)
{
    char key[64];
    double calls, seconds, flops, bytes;
    virtual_link link;
    if (sscanf(line, "compute,%63[^,],%lf,%lf,%lf,%lf", key, &calls, &seconds, &flops, &bytes) ==
        5) {
        price *p = &out->rows[out->n++];
        *p = (price){
            .call_s = seconds / calls, .call_flops = flops / calls, .call_bytes = bytes / calls};
        key[strcspn(key, " ")] = '\0';
        snprintf(p->name, sizeof p->name, "%.*s", TIMELINE_NAME_BYTES - 1, key);
        return is_within(calls, 1, MOST_WORK) && is_within(p->call_s, 0, MOST_CALL_S) &&
               is_within(p->call_flops, 0, MOST_WORK) && is_within(p->call_bytes, 0, MOST_WORK);
    }
    if (sscanf(line, "roof,%63[^,],,%lf,,,,%lf", key, &link.latency_s, &link.bytes_per_s) != 3)
        return true;
    *(strcmp(key, "upload") == 0 ? &out->upload : &out->download) = link;
    return is_within(link.latency_s, 0, MOST_LATENCY_S) &&
           is_within(link.bytes_per_s, LEAST_BYTES_PER_S, MOST_BYTES_PER_S);
}

static fsdp_status read_rows(FILE *in, const char *path, prices *out)
{
    char *line = NULL;
    size_t room = 0;
    fsdp_status status = FSDP_OK;
    for (int n = 1; status == FSDP_OK && out->n < PROFILE_MAX_ROWS && getline(&line, &room, in) > 0;
         n++)
        if (!parse_row(line, out))
            status =
                fsdp_error(FSDP_EINVAL, HINT,
                           "--plan-prices: line %d of %s: got '%.*s', expected calls from 1 on, "
                           "up to %g s and %g FLOP or bytes for each, and bytes/s from %g to %g",
                           n, path, (int)strcspn(line, "\n"), line, MOST_CALL_S, MOST_WORK,
                           LEAST_BYTES_PER_S, MOST_BYTES_PER_S);
    free(line);
    if (status != FSDP_OK || out->n > 0)
        return status;
    return fsdp_error(FSDP_EINVAL, HINT,
                      "--plan-prices: got no operation in %s, "
                      "expected rows that begin with compute",
                      path);
}

fsdp_status prices_read(const char *path, prices *out)
{
    int fd;
    size_t bytes;
    const char *why = open_regular(path, &fd, &bytes);
    FILE *in = why ? NULL : fdopen(fd, "r");
    *out = (prices){0};
    if (!in)
        return fsdp_error(FSDP_EIO, HINT, "--plan-prices: cannot read %s: %s", path,
                          why ? why : "no memory");
    fsdp_status status =
        bytes <= MOST_BYTES
            ? read_rows(in, path, out)
            : fsdp_error(FSDP_EINVAL, HINT, "--plan-prices: %s: got %zu bytes, expected at most %d",
                         path, bytes, MOST_BYTES);
    fclose(in);
    return status;
}

/* The absolute logarithm of the ratio of a and b. */
static double distance(double a, double b)
{
    return fabs(log((a + 1) / (b + 1)));
}

/* The row of the item's operation with the nearest FLOPs and bytes per call; NULL: no row. */
static const price *nearest(const prices *p, const timeline_item *item)
{
    const price *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < p->n; i++) {
        const price *row = &p->rows[i];
        double d = distance(row->call_flops, item->flops) + distance(row->call_bytes, item->bytes);
        if (strcmp(row->name, item->name) == 0 && d < least) {
            best = row;
            least = d;
        }
    }
    return best;
}

fsdp_status prices_have(const prices *p, const timeline_view *v)
{
    for (int64_t i = 0; i < v->n_items; i++) {
        const timeline_item *item = &v->items[i];
        if (item->kind == TIMELINE_WORK && !item->is_move && !nearest(p, item))
            return fsdp_error(FSDP_EINVAL,
                              "pass the profile of a run with the options of this plan",
                              "--plan-prices: no operation '%s' in the file", item->name);
    }
    return FSDP_OK;
}

double prices_seconds(const prices *p, const timeline_item *item)
{
    const price *best = nearest(p, item);
    if (!best)
        return 0;
    if (best->call_flops > 0)
        return best->call_s * item->flops / best->call_flops;
    return best->call_bytes > 0 ? best->call_s * item->bytes / best->call_bytes : best->call_s;
}
