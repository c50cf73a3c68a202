/* timeline_ranks.c -- see timeline_ranks.h. */
#include "common/observe/timeline_ranks.h"
#include <stdlib.h>
#include <string.h>

typedef struct call {
    const timeline_item *item;
    int rank;
} call;

static int by_call(const void *a, const void *b)
{
    const call *x = a, *y = b;
    if (x->item->group != y->item->group)
        return x->item->group < y->item->group ? -1 : 1;
    if (x->item->seq != y->item->seq)
        return x->item->seq < y->item->seq ? -1 : 1;
    return x->rank - y->rank;
}

static const char HINT[] = "pass the files of one run, as they were written";

/* n ranks' records of one call. */
static fsdp_status check_call(const call *c, int n, double bound_s)
{
    const timeline_item *first = c[0].item;
    int last = 0, early = 0;
    if (n != first->group_ranks)
        return fsdp_error(FSDP_EMISMATCH, HINT,
                          "%s %s (group %llu, sequence %llu): got %d ranks' records, expected %d",
                          first->name, first->unit, (unsigned long long)first->group,
                          (unsigned long long)first->seq, n, first->group_ranks);
    for (int i = 0; i < n; i++) {
        const timeline_item *item = c[i].item;
        if (strcmp(item->name, first->name) != 0 || strcmp(item->unit, first->unit) != 0)
            return fsdp_error(FSDP_EMISMATCH, HINT,
                              "group %llu, sequence %llu: %s %s on rank %d, %s %s on rank %d",
                              (unsigned long long)first->group, (unsigned long long)first->seq,
                              first->name, first->unit, c[0].rank, item->name, item->unit,
                              c[i].rank);
        if (!(item->end_s > 0)) /* it did not run */
            return FSDP_OK;
        last = item->begin_s > c[last].item->begin_s ? i : last;
        early = item->end_s < c[early].item->end_s ? i : early;
    }
    double by_s = c[last].item->begin_s - c[early].item->end_s;
    if (by_s <= bound_s || strcmp(first->name, "broadcast") == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH, "their clocks differ; trace ranks of one host",
                      "%s %s (group %llu, sequence %llu): rank %d ends it %.3f ms before rank %d "
                      "begins it, expected at most %.3f ms",
                      first->name, first->unit, (unsigned long long)first->group,
                      (unsigned long long)first->seq, c[early].rank, 1e3 * by_s, c[last].rank,
                      1e3 * bound_s);
}

fsdp_status timeline_check_ranks(const timeline_view *views, int world_size, double bound_s)
{
    size_t n = 0;
    int64_t most = 0;
    fsdp_status status = FSDP_OK;
    for (int r = 0; r < world_size; r++)
        most += views[r].n_items;
    call *calls = malloc((size_t)(most + 1) * sizeof *calls);
    if (!calls)
        return fsdp_error(FSDP_ENOMEM, "", "timelines: no host memory");
    for (int r = 0; r < world_size; r++)
        for (int64_t i = 0; i < views[r].n_items; i++)
            if (views[r].items[i].kind == TIMELINE_COLLECTIVE)
                calls[n++] = (call){&views[r].items[i], views[r].rank};
    qsort(calls, n, sizeof *calls, by_call);
    for (size_t i = 0, end; i < n && status == FSDP_OK; i = end) {
        for (end = i + 1; end < n && calls[end].item->group == calls[i].item->group &&
                          calls[end].item->seq == calls[i].item->seq;)
            end++;
        status = check_call(&calls[i], (int)(end - i), bound_s);
    }
    free(calls);
    return status;
}
