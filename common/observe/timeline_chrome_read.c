/* timeline_chrome_read.c -- timeline_read_chrome; see timeline_chrome.h. What it reads may come
 * from anywhere: every value is checked before it is used. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/observe/timeline_chrome.h"

static const char HINT[] = "pass the directory of a run with --profile; write it again";

/* One end of an arrow. */
typedef struct arrow_end {
    double id, tid, ts;
    bool begins;
    int event;
} arrow_end;

typedef struct reader {
    const char *path;
    const cJSON *event; /* the one being read; NULL: the whole file */
    int n_event;        /* its number, from 0 */
    timeline *t;
    timeline_job job;
    double rank;
    arrow_end *arrows; /* [n_arrows], room for one per event */
    size_t n_arrows;
} reader;

static const char *text_of(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(value) ? value->valuestring : "";
}

/* The event that r is at cannot be used. */
static fsdp_status bad(const reader *r, const char *what)
{
    if (!r->event)
        return fsdp_error(FSDP_EINVAL, HINT, "%s: %s", r->path, what);
    return fsdp_error(FSDP_EINVAL, HINT, "%s: event %d (%.60s): %s", r->path, r->n_event,
                      text_of(r->event, "name"), what);
}

/* *value = a number of `object` that is finite and between min and max. */
static fsdp_status number(const reader *r, const cJSON *object, const char *key, double min,
                          double max, double *value)
{
    const cJSON *got = cJSON_GetObjectItemCaseSensitive(object, key);
    char what[128];
    if (cJSON_IsNumber(got) && got->valuedouble >= min && got->valuedouble <= max) {
        *value = got->valuedouble;
        return FSDP_OK;
    }
    snprintf(what, sizeof what, "%s is %s, expected a number from %g to %g", key,
             cJSON_IsNumber(got) ? "out of range"
             : got               ? "no number"
                                 : "missing",
             min, max);
    return bad(r, what);
}

/* ---- items ----------------------------------------------------------------------------------- */

enum { MOST_RANKS = 1 << 20, MOST_STREAMS = 32 };
#define MOST  9e15 /* whole numbers up to here are exact */
#define WHOLE 1e12

static fsdp_status kind_of(const reader *r, timeline_kind *kind)
{
    static const char *const NAMES[] = {"work", "collective", "record", "wait", "sync", "step"};
    const char *cat = text_of(r->event, "cat");
    for (int k = 0; k < (int)(sizeof NAMES / sizeof *NAMES); k++)
        if (strcmp(cat, NAMES[k]) == 0) {
            *kind = (timeline_kind)k;
            return FSDP_OK;
        }
    return bad(r, "its category is none of work, collective, record, wait, sync, step");
}

static fsdp_status read_collective(const reader *r, const cJSON *args, timeline_item *item)
{
    double seq, ranks;
    const char *group =
        text_of(args, "group"); /* hexadecimal: 64 bits are more than a double has */
    char *end;
    item->group = strtoull(group, &end, 16);
    if (end == group || *end)
        return bad(r, "its group is no hexadecimal number");
    TRY(number(r, args, "sequence", 0, MOST, &seq));
    TRY(number(r, args, "ranks", 1, MOST_RANKS, &ranks));
    TRY(number(r, args, "bytes", 0, MOST, &item->bytes));
    item->seq = (uint64_t)seq;
    item->group_ranks = (int)ranks;
    snprintf(item->name, sizeof item->name, "%s", text_of(args, "op"));
    return FSDP_OK;
}

/* What args says of a kind of item. */
static fsdp_status read_args(const reader *r, const cJSON *args, double n, timeline_item *item)
{
    double after = TIMELINE_NONE, of = 0, step;
    switch (item->kind) {
    case TIMELINE_WORK:
        snprintf(item->name, sizeof item->name, "%s", text_of(r->event, "name"));
        TRY(number(r, args, "bytes", 0, MOST, &item->bytes));
        return number(r, args, "flops", 0, 1e300, &item->flops);
    case TIMELINE_COLLECTIVE:
        return read_collective(r, args, item);
    case TIMELINE_STEP:
        TRY(number(r, args, "step", 0, MOST, &step));
        item->seq = (uint64_t)step;
        return FSDP_OK;
    case TIMELINE_SYNC:
        if (cJSON_GetObjectItemCaseSensitive(args, "of"))
            TRY(number(r, args, "of", 1, timeline_read(r->t).n_streams, &of));
        item->stream = (int)of - 1; /* 0 stands for none: TIMELINE_HOST */
        __attribute__((fallthrough));
    case TIMELINE_WAIT:
        TRY(number(r, args, "after", TIMELINE_NONE, n - 1, &after));
        item->after = (int64_t)after;
        return FSDP_OK;
    default:
        return FSDP_OK;
    }
}

/* A slice ends; an instant took no time. */
static fsdp_status read_times(const reader *r, const cJSON *args, timeline_item *item)
{
    double ts, dur, issued;
    TRY(number(r, args, "issued", -WHOLE, WHOLE * 1e3, &issued));
    item->issued_s = 1e-6 * issued;
    if (strcmp(text_of(r->event, "ph"), "i") == 0)
        return FSDP_OK;
    TRY(number(r, r->event, "ts", -WHOLE, WHOLE * 1e3, &ts));
    TRY(number(r, r->event, "dur", 0, WHOLE, &dur));
    item->begin_s = 1e-6 * ts;
    item->end_s = 1e-6 * (ts + dur);
    return FSDP_OK;
}

static fsdp_status read_item(reader *r)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(r->event, "args");
    timeline_item item = {.stream = TIMELINE_HOST, .after = TIMELINE_NONE};
    timeline_view v = timeline_read(r->t);
    double n = (double)v.n_items, i, tid;
    TRY(kind_of(r, &item.kind));
    TRY(number(r, args, "item", n, n, &i));
    TRY(number(r, r->event, "tid", 0, v.n_streams, &tid));
    item.stream = (int)tid - 1;
    if (item.kind < TIMELINE_SYNC && item.stream == TIMELINE_HOST)
        return bad(r, "it is on the host, expected a stream");
    item.phase = *text_of(args, "phase") ? *text_of(args, "phase") : '-';
    snprintf(item.unit, sizeof item.unit, "%s", text_of(args, "unit"));
    TRY(read_args(r, args, n, &item));
    if (item.after >= 0 && v.items[item.after].kind != TIMELINE_RECORD)
        return bad(r, "it waits for an item that is no record");
    TRY(read_times(r, args, &item));
    return timeline_add(r->t, &item) != TIMELINE_NONE
               ? FSDP_OK
               : fsdp_error(FSDP_ENOMEM, "", "%s: no host memory", r->path);
}

/* ---- arrows ---------------------------------------------------------------------------------- */

static fsdp_status read_arrow_end(reader *r, bool begins)
{
    arrow_end *a = &r->arrows[r->n_arrows++];
    *a = (arrow_end){.begins = begins, .event = r->n_event};
    TRY(number(r, r->event, "id", 0, MOST, &a->id));
    TRY(number(r, r->event, "ts", -WHOLE, WHOLE * 1e3, &a->ts));
    return number(r, r->event, "tid", 1, MOST_STREAMS, &a->tid);
}

/* By id, the beginning first. */
static int by_id(const void *a, const void *b)
{
    const arrow_end *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return y->begins - x->begins;
}

/* Whether a slice of its stream begins where the arrow does, to a nanosecond. */
static bool lands(const timeline_view *v, const arrow_end *a)
{
    for (int64_t i = 0; i < v->n_items; i++)
        if (v->items[i].stream == (int)a->tid - 1 && v->items[i].end_s > 0 &&
            v->items[i].kind < TIMELINE_SYNC && fabs(1e6 * v->items[i].begin_s - a->ts) < 1e-3)
            return true;
    return false;
}

static fsdp_status bad_arrow(reader *r, const arrow_end *a, const cJSON *events, const char *what)
{
    r->n_event = a->event;
    r->event = cJSON_GetArrayItem(events, a->event);
    return bad(r, what);
}

static fsdp_status check_arrows(reader *r, const cJSON *events)
{
    timeline_view v = timeline_read(r->t);
    qsort(r->arrows, r->n_arrows, sizeof *r->arrows, by_id);
    for (size_t i = 0; i < r->n_arrows; i++) {
        const arrow_end *a = &r->arrows[i], *other = i % 2 == 0 ? a + 1 : a - 1;
        bool paired = (i ^ 1) < r->n_arrows && other->id == a->id && a->begins == (i % 2 == 0) &&
                      other->begins != a->begins;
        if (!paired)
            return bad_arrow(r, a, events, "an arrow that has no other end, or more than one");
        if (!lands(&v, a))
            return bad_arrow(r, a, events, "no slice begins where the arrow does");
        if (!a->begins && a->ts < other->ts)
            return bad_arrow(r, a, events, "the arrow points back in time");
    }
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A stream's name: they come in order. */
static fsdp_status read_name(reader *r)
{
    const char *name = text_of(cJSON_GetObjectItemCaseSensitive(r->event, "args"), "name");
    double tid;
    if (strcmp(text_of(r->event, "name"), "thread_name") != 0)
        return FSDP_OK;
    TRY(number(r, r->event, "tid", 0, MOST_STREAMS, &tid));
    if (tid > 0 && timeline_stream(r->t, name) != (int)tid - 1)
        return bad(r, "streams are not numbered in order");
    return FSDP_OK;
}

static fsdp_status read_event(reader *r)
{
    const char *ph = text_of(r->event, "ph");
    double pid;
    TRY(number(r, r->event, "pid", r->rank, r->rank, &pid));
    if (strcmp(ph, "M") == 0)
        return read_name(r);
    if (strcmp(ph, "X") == 0 || strcmp(ph, "i") == 0)
        return read_item(r);
    if (strcmp(ph, "s") == 0 || strcmp(ph, "f") == 0)
        return read_arrow_end(r, *ph == 's');
    return bad(r, "its phase is none of M, X, i, s, f");
}

static fsdp_status read_events(reader *r, const cJSON *root)
{
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(root, "traceEvents");
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(root, "otherData");
    double world_size, offset_us, bound_us, n_lost;
    if (!cJSON_IsArray(events))
        return bad(r, "it has no list of traceEvents");
    TRY(number(r, other, "world_size", 1, MOST_RANKS, &world_size));
    TRY(number(r, other, "rank", 0, world_size - 1, &r->rank));
    TRY(number(r, other, "clock_offset_us", -1e18, 1e18, &offset_us));
    TRY(number(r, other, "clock_bound_us", 0, 1e18, &bound_us));
    TRY(number(r, other, "lost", 0, 1e18, &n_lost));
    if (n_lost > 0)
        return bad(r,
                   "it is not whole: its steps had more items than a timeline holds; trace a run "
                   "with fewer micro-steps");
    r->job = (timeline_job){(int)world_size, 1e-6 * offset_us, 1e-6 * bound_us};
    r->t = timeline_create((int)r->rank);
    r->arrows = malloc(((size_t)cJSON_GetArraySize(events) + 1) * sizeof *r->arrows);
    if (!r->t || !r->arrows)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no host memory", r->path);
    cJSON_ArrayForEach(r->event, events)
    {
        TRY(read_event(r));
        r->n_event++;
    }
    return check_arrows(r, events);
}

/* The whole text of a file, ended with a 0; the caller frees it. */
static fsdp_status slurp(const char *path, char **text)
{
    FILE *in = fopen(path, "rb");
    long bytes = in && fseek(in, 0, SEEK_END) == 0 ? ftell(in) : -1;
    *text = bytes >= 0 ? malloc((size_t)bytes + 1) : NULL;
    bool whole = false;
    if (*text) {
        rewind(in);
        whole = fread(*text, 1, (size_t)bytes, in) == (size_t)bytes;
        (*text)[bytes] = '\0';
    }
    int why = errno;
    if (in)
        fclose(in);
    if (whole)
        return FSDP_OK;
    free(*text);
    *text = NULL;
    return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", path, strerror(why));
}

fsdp_status timeline_read_chrome(const char *path, timeline **out, timeline_job *job)
{
    reader r = {.path = path};
    char *text;
    TRY(slurp(path, &text));
    cJSON *root = cJSON_Parse(text);
    fsdp_status status;
    if (root)
        status = read_events(&r, root);
    else
        status = fsdp_error(FSDP_EINVAL, HINT, "%s: it is no JSON, or not whole: wrong at byte %zu",
                            path, (size_t)(cJSON_GetErrorPtr() - text));
    free(text);
    free(r.arrows);
    cJSON_Delete(root);
    if (status != FSDP_OK) {
        timeline_free(r.t);
        return status;
    }
    *out = r.t;
    *job = r.job;
    return FSDP_OK;
}
