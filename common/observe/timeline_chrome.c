/* timeline_chrome.c -- timeline_write_chrome; see timeline_chrome.h. */
#include "common/observe/timeline_chrome.h"
#include "common/observe/timeline_stats.h"

/* A file being written. */
typedef struct chrome {
    FILE *out;
    const timeline_view *v;
    uint64_t step;
} chrome;

static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else
            fprintf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fputc('"', out);
}

/* Write the name that the viewer shows for the rank (what: "process"), or for its host or one of
 * its streams (what: "thread"). */
static void put_name(const chrome *c, const char *what, int tid, const char *name)
{
    fprintf(c->out,
            "{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what,
            c->v->rank, tid);
    put_text(c->out, name);
    fprintf(c->out, "}},\n");
}

/* ---- items ----------------------------------------------------------------------------------- */

/* The title of item i's slice. The title of a wait names what it waits for. */
static void item_title(const chrome *c, int64_t i, char *title, size_t title_bytes)
{
    const timeline_item *item = &c->v->items[i];
    int64_t cause = timeline_cause(c->v, i);
    int of = item->kind == TIMELINE_SYNC ? item->stream : TIMELINE_HOST;
    if (of == TIMELINE_HOST && item->after >= 0)
        of = c->v->items[item->after].stream;
    const char *stream = of >= 0 ? c->v->streams[of] : "nothing";
    if (item->kind == TIMELINE_STEP)
        snprintf(title, title_bytes, "step %llu", (unsigned long long)item->seq);
    else if (item->kind == TIMELINE_COLLECTIVE)
        snprintf(title, title_bytes, "%s %s", item->name, item->unit);
    else if (cause != TIMELINE_NONE)
        snprintf(title, title_bytes, "wait: %s %s", c->v->items[cause].name,
                 c->v->items[cause].unit);
    else if (item->kind == TIMELINE_WORK)
        snprintf(title, title_bytes, "%s", item->name);
    else
        snprintf(title, title_bytes, "%s: %s", item->kind == TIMELINE_WAIT ? "wait" : "host sync",
                 stream);
}

static void put_item(const chrome *c, int64_t i)
{
    static const char *const KIND_NAME[] = {[TIMELINE_WORK] = "work",
                                            [TIMELINE_COLLECTIVE] = "collective",
                                            [TIMELINE_WAIT] = "wait",
                                            [TIMELINE_SYNC] = "sync",
                                            [TIMELINE_STEP] = "step"};
    const timeline_item *item = &c->v->items[i];
    char title[TIMELINE_NAME_BYTES + TIMELINE_UNIT_BYTES + 16];
    bool on_host = item->kind == TIMELINE_SYNC || item->stream == TIMELINE_HOST;
    item_title(c, i, title, sizeof title);
    fprintf(c->out, "{\"name\":");
    put_text(c->out, title);
    fprintf(c->out, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,", KIND_NAME[item->kind], c->v->rank,
            on_host ? 0 : item->stream + 1);
    if (item->end_s > 0)
        fprintf(c->out, "\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,", 1e6 * item->begin_s,
                1e6 * (item->end_s - item->begin_s));
    else
        fprintf(c->out, "\"ph\":\"i\",\"s\":\"t\",\"ts\":%.3f,", 1e6 * item->issued_s);
    fprintf(c->out,
            "\"args\":{\"step\":%llu,\"issued\":%.3f,\"phase\":\"%c\",\"bytes\":%.0f,"
            "\"flops\":%.0f,\"unit\":",
            (unsigned long long)c->step, 1e6 * item->issued_s, item->phase, item->bytes,
            item->flops);
    put_text(c->out, item->unit);
    if (item->kind == TIMELINE_COLLECTIVE)
        fprintf(c->out, ",\"group\":\"%llx\",\"sequence\":%llu,\"ranks\":%d",
                (unsigned long long)item->group, (unsigned long long)item->seq, item->group_ranks);
    fprintf(c->out, "}},\n");
}

/* ---- arrows ---------------------------------------------------------------------------------- */

/* The first WORK that runs on the stream of item i after item i, or TIMELINE_NONE. */
static int64_t next_work(const timeline_view *v, int64_t i)
{
    for (int64_t k = i + 1; k < v->n_items; k++)
        if (v->items[k].kind == TIMELINE_WORK && v->items[k].stream == v->items[i].stream &&
            v->items[k].end_s > 0)
            return k;
    return TIMELINE_NONE;
}

static void put_end_of_arrow(const chrome *c, const char *ph, uint64_t id,
                             const timeline_item *item)
{
    fprintf(c->out,
            "{\"name\":\"data\",\"cat\":\"flow\",\"ph\":%s,\"id\":%llu,\"pid\":%d,\"tid\":%d,"
            "\"ts\":%.3f},\n",
            ph, (unsigned long long)id, c->v->rank, item->stream + 1, 1e6 * item->begin_s);
}

/* Write the arrow from the collective that WAIT i waits for to the work after the WAIT. The arrow's
 * id is unique over all ranks. */
static void put_arrow(const chrome *c, int64_t i)
{
    int64_t cause = timeline_cause(c->v, i);
    int64_t work = cause != TIMELINE_NONE ? next_work(c->v, i) : TIMELINE_NONE;
    if (work == TIMELINE_NONE || !(c->v->items[cause].end_s > 0))
        return;
    uint64_t id = ((uint64_t)c->v->rank << 32) + (uint64_t)i;
    put_end_of_arrow(c, "\"s\"", id, &c->v->items[cause]);
    put_end_of_arrow(c, "\"f\",\"bp\":\"e\"", id, &c->v->items[work]);
}

/* ---- the file -------------------------------------------------------------------------------- */

void timeline_write_chrome(const timeline_view *v, int world_size, FILE *out)
{
    chrome c = {.out = out, .v = v};
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    char name[32];
    snprintf(name, sizeof name, "rank %d", v->rank);
    put_name(&c, "process", 0, name);
    put_name(&c, "thread", 0, "host");
    for (int s = 0; s < v->n_streams; s++)
        put_name(&c, "thread", s + 1, v->streams[s]);
    for (int64_t i = 0; i < v->n_items; i++) {
        if (v->items[i].kind == TIMELINE_RECORD)
            continue;
        c.step = v->items[i].kind == TIMELINE_STEP ? v->items[i].seq : c.step;
        put_item(&c, i);
        put_arrow(&c, i);
    }
    fprintf(out,
            "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"tid\":0,"
            "\"args\":{\"sort_index\":%d}}\n],\n\"otherData\":{\"rank\":%d,\"world_size\":%d,"
            "\"clock_offset_us\":%.3f,\"clock_bound_us\":%.3f,\"lost\":%llu}}\n",
            v->rank, v->rank, v->rank, world_size, 1e6 * v->offset_s, 1e6 * v->bound_s,
            (unsigned long long)v->n_lost);
}
