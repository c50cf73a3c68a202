/* prices.c -- see prices.h. */
#include "trainer/prices.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Parse "compute,matmul 256x64x256 TN,9,0.0005,...": total calls, seconds, FLOPs and bytes. */
static bool parse_row(const char *line, price *out)
{
    char key[64];
    double calls, seconds, flops, bytes;
    if (sscanf(line, "compute,%63[^,],%lf,%lf,%lf,%lf", key, &calls, &seconds, &flops, &bytes) != 5)
        return false;
    key[strcspn(key, " ")] = '\0';
    *out = (price){
        .call_s = seconds / calls, .call_flops = flops / calls, .call_bytes = bytes / calls};
    snprintf(out->name, sizeof out->name, "%.*s", TIMELINE_NAME_BYTES - 1, key);
    return calls > 0 && isfinite(out->call_s) && out->call_s >= 0;
}

/* Parse "roof,upload,,1.2e-05,,,,2.5e+10,,": latency and rate of copies. */
static void parse_copies(const char *line, prices *out)
{
    char way[16];
    virtual_link link;
    if (sscanf(line, "roof,%15[^,],,%lf,,,,%lf", way, &link.latency_s, &link.bytes_per_s) == 3 &&
        link.latency_s >= 0 && link.bytes_per_s > 0)
        *(strcmp(way, "upload") == 0 ? &out->upload : &out->download) = link;
}

fsdp_status prices_read(const char *path, prices *out)
{
    const char *hint = "pass a profile-rank-R.csv, which --profile DIR writes into DIR";
    char line[512];
    FILE *in = fopen(path, "r");
    *out = (prices){0};
    if (!in)
        return fsdp_error(FSDP_EIO, hint, "--plan-prices: cannot read %s", path);
    while (out->n < PROFILE_MAX_ROWS && fgets(line, sizeof line, in)) {
        parse_copies(line, out);
        out->n += parse_row(line, &out->rows[out->n]);
    }
    fclose(in);
    return out->n > 0 ? FSDP_OK
                      : fsdp_error(FSDP_EINVAL, hint, "--plan-prices: no operation in %s", path);
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
