/* snapshot.c -- see snapshot.h. */
#include "common/observe/snapshot.h"
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include "common/base/atomic_file.h"

#define ALIVE INT64_MAX

typedef struct block {
    const void *ptr;
    const char *label; /* a literal */
    mem_category category;
    char scope[48], phase[16], stream[32]; /* see snapshot.h */
    bool is_of_unit;                       /* scope names the unit of a collective */
    bool on_host;
    size_t bytes, reserved_bytes;
    int64_t birth, death; /* numbers of calls; death: ALIVE until the block is freed */
    TAILQ_ENTRY(block) link;
} block;

struct snapshot {
    pthread_mutex_t lock; /* guards all below */
    device *dev;
    TAILQ_HEAD(block_list, block) blocks; /* in the order of their births */
    void *live;                           /* tree of the live blocks by address */
    int64_t n_calls;
    size_t live_bytes, most_bytes;  /* of the device: now, and the peak of the latest step */
    int64_t step, begin, end, peak; /* the latest step, its calls begin + 1 to end, and the call
                                       that reached most_bytes */
    bool is_short;                  /* memory ran out, so blocks are missing */
};

static const char *const PAGE[] = {
#include "common/observe/snapshot_page.inc"
};

/* ---- what is allocated and freed ------------------------------------------------------------- */

static uintptr_t end_of(const block *b)
{
    return (uintptr_t)b->ptr + (b->bytes > 0 ? b->bytes : 1);
}

/* Blocks that overlap are equal. */
static int compare_blocks(const void *a, const void *b)
{
    const block *x = a, *y = b;
    return (end_of(y) <= (uintptr_t)x->ptr) - (end_of(x) <= (uintptr_t)y->ptr);
}

static void note_alloc(snapshot *s, const device_act *act)
{
    block *b = malloc(sizeof *b);
    s->n_calls++;
    if (!b) {
        s->is_short = true;
        return;
    }
    *b = (block){.ptr = act->dst,
                 .label = act->label,
                 .category = act->category,
                 .bytes = act->bytes,
                 .on_host = act->on_host,
                 .reserved_bytes = act->on_host ? 0 : device_mem_reserved(s->dev),
                 .birth = s->n_calls,
                 .death = ALIVE};
    snprintf(b->scope, sizeof b->scope, "%s", act->scope ? act->scope : "");
    snprintf(b->phase, sizeof b->phase, "%s", act->phase ? act->phase : "");
    snprintf(b->stream, sizeof b->stream, "%s", stream_name(act->stream));
    TAILQ_INSERT_TAIL(&s->blocks, b, link);
    s->is_short = s->is_short || !tsearch(b, &s->live, compare_blocks);
    s->live_bytes += b->on_host ? 0 : b->bytes;
    if (s->live_bytes > s->most_bytes) {
        s->most_bytes = s->live_bytes;
        s->peak = s->n_calls;
    }
}

/* The live block that contains ptr, or NULL if this device did not allocate it. */
static block *block_at(const snapshot *s, const void *ptr)
{
    block *const *found = tfind(&(block){.ptr = ptr}, &s->live, compare_blocks);
    return found ? *found : NULL;
}

static void note_free(snapshot *s, const void *ptr)
{
    block *b = block_at(s, ptr);
    if (!b)
        return;
    tdelete(b, &s->live, compare_blocks);
    b->death = ++s->n_calls;
    s->live_bytes -= b->on_host ? 0 : b->bytes;
}

/* Set the scope of the blocks that a launch uses. A prefetched all-gather is issued in the scope of
 * another layer, so the unit that a collective names replaces the scope. A block allocated outside
 * of all scopes gets the scope of its first use, except parameters: without units, all layers use
 * one block of them. */
static void note_use(snapshot *s, const device_act *act)
{
    const char *name = act->label ? act->label : act->scope;
    for (int i = 0; name && i < act->n_accesses; i++) {
        block *b = block_at(s, act->accesses[i].ptr);
        if (!b)
            break; /* the other accesses, perhaps thousands, are to other ranks' memory */
        if (b->is_of_unit || (!act->label && (*b->scope || b->category == MEM_PARAMS_SHARD)))
            continue;
        snprintf(b->scope, sizeof b->scope, "%s", name);
        b->is_of_unit = act->label != NULL;
    }
}

static uint64_t act_issued(void *self, const device_act *act)
{
    snapshot *s = self;
    pthread_mutex_lock(&s->lock);
    if (act->kind == ACT_FREE)
        note_free(s, act->dst);
    else if (act->kind == ACT_LAUNCH)
        note_use(s, act);
    else if (act->kind == ACT_ALLOC)
        note_alloc(s, act);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static void forget_freed(snapshot *s)
{
    for (block *b = TAILQ_FIRST(&s->blocks), *next; b; b = next) {
        next = TAILQ_NEXT(b, link);
        if (b->death == ALIVE)
            continue;
        TAILQ_REMOVE(&s->blocks, b, link);
        free(b);
    }
}

void snapshot_step(snapshot *s, int64_t step)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    forget_freed(s);
    s->step = step;
    s->begin = s->end = s->peak = s->n_calls;
    s->most_bytes = s->live_bytes;
    pthread_mutex_unlock(&s->lock);
}

void snapshot_end_step(snapshot *s)
{
    if (s)
        s->end = s->n_calls;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Write the rows of the blocks that are alive after any of the calls first to last. */
static void put_rows(const snapshot *s, int64_t first, int64_t last, FILE *out)
{
    const block *b;
    fprintf(out, "label,category,scope,phase,stream,bytes,birth,death,reserved,memory\n");
    TAILQ_FOREACH(b, &s->blocks, link)
    {
        if (b->birth > last || b->death <= first)
            continue;
        fprintf(out, "%s,%s,%s,%s,%s,%zu,%lld,", b->label, mem_category_name(b->category), b->scope,
                b->phase, b->stream, b->bytes, (long long)(b->birth - s->begin));
        if (b->death <= s->end)
            fprintf(out, "%lld", (long long)(b->death - s->begin));
        fprintf(out, ",%zu,%s\n", b->reserved_bytes, b->on_host ? "host" : "device");
    }
}

/* Write the page, with data in place of its lines "@facts@" and "@rows@". */
static void put_page(const snapshot *s, int rank, int n_ranks, FILE *out)
{
    int64_t first = s->begin, last = s->end;
    if (last - first > SNAPSHOT_MOST_CALLS) {
        first =
            s->peak - first > SNAPSHOT_MOST_CALLS / 2 ? s->peak - SNAPSHOT_MOST_CALLS / 2 : first;
        last = last - first > SNAPSHOT_MOST_CALLS ? first + SNAPSHOT_MOST_CALLS : last;
    }
    for (size_t i = 0; i < sizeof PAGE / sizeof *PAGE; i++)
        if (strcmp(PAGE[i], "@facts@") == 0)
            fprintf(out,
                    "const facts = {title: \"rank %d of %d in step %lld\", calls: %lld, first: "
                    "%lld, last: %lld};\n",
                    rank, n_ranks, (long long)s->step + 1, (long long)(s->end - s->begin),
                    (long long)(first - s->begin), (long long)(last - s->begin));
        else if (strcmp(PAGE[i], "@rows@") == 0)
            put_rows(s, first, last, out);
        else
            fprintf(out, "%s\n", PAGE[i]);
}

fsdp_status snapshot_write(snapshot *s, const char *path, int rank, int n_ranks)
{
    const char *dot = strrchr(path, '.');
    atomic_file file;
    if (s->is_short)
        return fsdp_error(FSDP_ENOMEM, "", "--snapshot: blocks are missing, no memory of the host");
    TRY(atomic_file_open(&file, path, "pass a --snapshot path that can be written"));
    if (dot && strcmp(dot, ".csv") == 0)
        put_rows(s, s->begin, s->end, file.out);
    else
        put_page(s, rank, n_ranks, file.out);
    return atomic_file_commit(&file);
}

/* ---- life ------------------------------------------------------------------------------------ */

fsdp_status snapshot_open(device *d, snapshot **out)
{
    snapshot *s = *out = calloc(1, sizeof *s);
    if (!s)
        return fsdp_error(FSDP_ENOMEM, "", "--snapshot: no memory of the host");
    s->dev = d;
    TAILQ_INIT(&s->blocks);
    pthread_mutex_init(&s->lock, NULL);
    device_set_second_watch(d, &(device_watch){.self = s, .issued = act_issued});
    return FSDP_OK;
}

void snapshot_free(snapshot *s)
{
    if (!s)
        return;
    forget_freed(s); /* all of them: the device is closed */
    pthread_mutex_destroy(&s->lock);
    free(s);
}
