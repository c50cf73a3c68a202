/* prices.c -- see prices.h. */
#include "trainer/prices.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "compute,matmul 256x64x256 TN,9,0.0005,...": calls, seconds, FLOP and bytes in all. */
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

static fsdp_status read_rows(FILE *in, prices *out)
{
    char line[512];
    while (fgets(line, sizeof line, in)) {
        price row;
        if (!parse_row(line, &row))
            continue;
        price *rows = realloc(out->rows, (out->n + 1) * sizeof *rows);
        if (!rows)
            return fsdp_error(FSDP_ENOMEM, "", "--plan-prices: no memory of the host");
        out->rows = rows;
        out->rows[out->n++] = row;
    }
    return FSDP_OK;
}

fsdp_status prices_read(const char *path, prices *out)
{
    const char *hint = "pass a profile-rank-R.csv, which --profile DIR writes into DIR";
    FILE *in = fopen(path, "r");
    *out = (prices){0};
    if (!in)
        return fsdp_error(FSDP_EIO, hint, "--plan-prices: cannot read %s", path);
    fsdp_status status = read_rows(in, out);
    fclose(in);
    if (status == FSDP_OK && out->n == 0)
        status = fsdp_error(FSDP_EINVAL, hint, "--plan-prices: no operation in %s", path);
    return status;
}

/* How many times as much one is as the other, as a logarithm. */
static double distance(double a, double b)
{
    return fabs(log((a + 1) / (b + 1)));
}

double prices_seconds(const prices *p, const timeline_item *item)
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
    if (!best)
        return 0;
    if (best->call_flops > 0)
        return best->call_s * item->flops / best->call_flops;
    return best->call_bytes > 0 ? best->call_s * item->bytes / best->call_bytes : best->call_s;
}

void prices_free(prices *p)
{
    free(p->rows);
    *p = (prices){0};
}
