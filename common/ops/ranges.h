/* ranges.h -- walk over the ranges of an operation's range_table (optim.h):
 *
 *     decay_range r;
 *     for (int i = 0; range_next(&a->ranges, &i, 0, a->elems, &r);)
 *         ... adamw_of_range(a, r) */
#pragma once
#include "common/base/dtype.h"
#include "common/base/row_fn.h"
#include "common/ops/optim.h"
#include "common/ops/update_rules.h"

/* range_next -- find the next range, from number *i on, with some of the array's elements
 * [begin, end). *out: those elements, counted from the array's first. Advances *i, which is 0
 * before the first call. Returns false if there is none. Without a table there is one range. */
static inline bool range_next(const range_table *t, int *i, size_t begin, size_t end,
                              decay_range *out)
{
    const decay_range all = {t->origin + begin, end - begin, true};
    const decay_range *at = t->at ? t->at : &all;
    for (const int n = t->at ? t->n : 1; *i < n;) {
        const decay_range *r = &at[(*i)++];
        const size_t first = begin + t->origin, from = first > r->begin ? first : r->begin;
        const size_t to = min_size(end + t->origin, r->begin + r->elems);
        if (from >= to)
            continue;
        const decay_range found = {from - t->origin, to - from, r->decay};
        *out = found;
        return true;
    }
    return false;
}

/* range_elems -- how many of the array's elements are in ranges. */
static inline size_t range_elems(const range_table *t, size_t elems)
{
    size_t n = 0;
    decay_range r;
    for (int i = 0; range_next(t, &i, 0, elems, &r);)
        n += r.elems;
    return n;
}

/* sum_squares_of_range -- the arguments for r alone, one of the ranges that range_next finds. */
ROW_FN sum_squares_args sum_squares_of_range(const sum_squares_args *a, decay_range r)
{
    sum_squares_args part = *a;
    part.x += r.begin;
    part.elems = r.elems;
    part.ranges.at = NULL;
    return part;
}

/* adamw_of_range -- likewise. */
ROW_FN adamw_args adamw_of_range(const adamw_args *a, decay_range r)
{
    adamw_args part = *a;
    part.param += r.begin;
    part.m += r.begin;
    part.v += r.begin;
    part.grad += r.begin;
    part.elems = r.elems;
    part.decay = r.decay ? a->decay : 0.0f;
    part.ranges.at = NULL;
    return part;
}

/* update_of_range -- likewise. */
ROW_FN optim_args update_of_range(const optim_args *a, decay_range r)
{
    optim_args part = *a;
    part.param += r.begin;
    part.grad += r.begin;
    for (int k = 0; k < OPTIM_MAX_STATES && part.state[k]; k++)
        part.state[k] += r.begin;
    part.elems = r.elems;
    part.weight_decay = r.decay ? a->weight_decay : 0.0f;
    part.ranges.at = NULL;
    return part;
}
