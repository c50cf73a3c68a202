/* streams.c -- see streams.h. */
#include "tests/sim/core/streams.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/instruments/separate.h"

enum { GONE = 0xdead, QUARANTINE = 1024, RECENT = 6 };

static device *opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static LIST_HEAD(, sim_queue) queues;
static void *quarantine[QUARANTINE];
static unsigned n_gone;
static const char *recent[RECENT];
static unsigned n_launches;

/* ---- messages and faults --------------------------------------------------------------------- */

void sim_die(const char *format, ...)
{
    const sim_words *w = &sim_stands_for;
    va_list args;
    fprintf(stderr, "%s stand-in: ", w->library);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; %s launched last:", w->launches);
    for (unsigned n = n_launches < RECENT ? n_launches : RECENT; n > 0; n--)
        fprintf(stderr, " %s", recent[(n_launches - n) % RECENT]);
    fprintf(stderr, "\nHINT: a real %s would go on with wrong values, hang, or fail later\n",
            w->device);
    abort();
}

size_t sim_number(const char *name, size_t without)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : without;
}

static bool is_faulty(const char *name)
{
    static int n_seen;
    const char *fault = getenv("FSDP_SIM_FAULT"), *colon = fault ? strrchr(fault, ':') : NULL;
    if (colon == NULL || strncmp(name, fault, (size_t)(colon - fault)) != 0 ||
        name[colon - fault] != '\0')
        return false;
    return ++n_seen == atoi(colon + 1);
}

bool sim_launch_note(const char *name)
{
    pthread_mutex_lock(&lock);
    recent[n_launches++ % RECENT] = name;
    const bool faulty = is_faulty(name);
    pthread_mutex_unlock(&lock);
    return faulty;
}

unsigned sim_launches(void)
{
    pthread_mutex_lock(&lock);
    const unsigned n = n_launches;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- the device ------------------------------------------------------------------------------ */

fsdp_status comm_schedule_seed(uint64_t *seed) __attribute__((weak));
static bool is_scheduled;

fsdp_status sim_device_open(void)
{
    device_config config = {
        .backend = &device_separate, .n_threads = 1, .async_compute = true, .debug_fill = true};
    if (opened != NULL)
        return FSDP_OK;
    if (comm_schedule_seed != NULL)
        (void)comm_schedule_seed(&config.schedule_seed);
    is_scheduled = config.schedule_seed != 0;
    return device_open(&config, &opened);
}

device *sim_device(void)
{
    return opened;
}

bool sim_device_is_scheduled(void)
{
    return is_scheduled;
}

/* ---- handles --------------------------------------------------------------------------------- */

const char *sim_handle_is_not(const void *handle, int what)
{
    if (handle == NULL)
        return "NULL";
    const int found = ((const sim_handle *)handle)->what;
    return found == what ? NULL : found == GONE ? "destroyed" : "something else";
}

void *sim_live(const void *handle, int what, const char *call, const char *noun)
{
    const char *is = sim_handle_is_not(handle, what);
    if (is != NULL)
        sim_die("%s of %s that is %s", call, noun, is);
    return (void *)(uintptr_t)handle;
}

void sim_handle_destroy(void *handle)
{
    ((sim_handle *)handle)->what = GONE;
    pthread_mutex_lock(&lock);
    void **at = &quarantine[n_gone++ % QUARANTINE];
    free(*at);
    *at = handle;
    pthread_mutex_unlock(&lock);
}

/* ---- streams --------------------------------------------------------------------------------- */

fsdp_status sim_queue_open(sim_queue *q, int priority)
{
    *q = (sim_queue){.s = NULL};
    fsdp_status status = stream_create(
        opened, &(stream_config){.name = sim_stands_for.library, .priority = priority}, &q->s);
    if (status == FSDP_OK)
        status = event_create(opened, &q->tail);
    if (status != FSDP_OK) {
        stream_free(q->s);
        return status;
    }
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&queues, q, link);
    pthread_mutex_unlock(&lock);
    return FSDP_OK;
}

void sim_queue_close(sim_queue *q)
{
    pthread_mutex_lock(&lock);
    LIST_REMOVE(q, link);
    pthread_mutex_unlock(&lock);
    stream_free(q->s);
    event_free(q->tail);
}

stream *sim_queue_use(sim_queue *q)
{
    q->changed = true;
    return q->s;
}

bool sim_queue_done(sim_queue *q)
{
    if (q->changed)
        (void)event_record(q->tail, q->s);
    q->changed = false;
    return event_done(q->tail);
}

void sim_queues_wait(void)
{
    sim_queue *q;
    pthread_mutex_lock(&lock);
    LIST_FOREACH(q, &queues, link)
    {
        (void)stream_sync(q->s);
    }
    pthread_mutex_unlock(&lock);
}
