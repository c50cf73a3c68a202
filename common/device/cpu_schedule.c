/* cpu_schedule.c -- the adversarial scheduler of the CPU backend: FSDP_SCHEDULE=SEED.
 *
 *   cpu_schedule_open -> a player for the host and one for each stream -> cpu_schedule_close
 *
 * Without a scheduler, streams are threads that run in parallel, and a missing wait may go
 * unnoticed, because the awaited work has usually finished anyway. With the scheduler, only one
 * player runs at a time (it has the turn), and a seed decides which one is next. So the scheduler
 * also runs orders that the events allow but that rarely occur, and the same seed repeats them.
 *
 * The players are the host, which is the thread that opened the device and the only one to use it,
 * and all streams, including the compute stream. All devices that a thread has opened share one
 * scheduler, with the first one's seed: while the thread waits for one device, the streams of all
 * can run. A stream that has the turn runs one task. The host runs until its next call of device.h
 * that issues work or waits. The player that has run chooses the next one (pick) among those that
 * can run: streams whose first task does not wait for an event that has not been reached, and the
 * host unless it waits for something that has not happened.
 *
 * Strategies, one per run, drawn from the seed:
 *     random    the host with a probability that is drawn too (it runs far ahead, or hardly), else
 *               any stream
 *     newest    the same for the host; else the stream that work was issued on last
 *     priority  every player has a priority, and the highest runs. Half of these runs draw a new
 *               one now and then; in the others the lowest player runs only if no other can
 *               [Burckhardt et al. 2010]
 *
 * Calls. If a task or the host waited for other ranks with the turn, the work that those ranks wait
 * for could not run. So such a call passes on the turn when it begins, and takes it back when it is
 * over. But while no older call (in the order in which the host made them) is unfinished, the turn
 * stays with the call: no other player runs until it is over. Thus the order of a rank depends on
 * the seed alone, whenever its peers arrive. This cannot deadlock if all ranks make their calls in
 * one order. Proof: among the ranks that stop for a call, take the one with the oldest call. Each
 * of its peers has finished this call, or is in it, or does not stop for an older call and so still
 * runs the work before it.
 *
 * If the calls of a rank are issued on one stream, the order of all its tasks depends only on the
 * seed and the program. With several streams, a call may begin while an older one is still queued;
 * it then overlaps with other tasks. A task that waits for the host (a test's gate, or a plug-in's
 * callback, which may itself wait for ranks) has no number of its own (CPU_CALL_OF_HOST), so every
 * call treats it as older. Such a task overlaps with other tasks as well. */
#include "common/device/cpu_schedule.h"
#include <stdlib.h>
#include "common/device/device.h"

typedef enum strategy { PLAY_RANDOM, PLAY_NEWEST, PLAY_PRIORITY } strategy;

enum { HOST_PARTS = 16, CHANGE_EVERY = 32 };

/* A field may be touched by the player that has the turn, or by a thread that holds the lock. */
struct cpu_schedule {
    int n_devices;
    TAILQ_HEAD(, cpu_player) streams;
    pthread_mutex_t lock;
    cpu_player *turn; /* the player that has the turn */
    cpu_player host;
    bool (*over)(void *self); /* whether the host's wait is over; NULL: the host does not wait */
    void *over_self;
    uint64_t n_issued, n_calls;
    uint64_t draw_state;
    strategy plays;
    uint32_t host_parts; /* a host that can run gets the turn in host_parts of HOST_PARTS cases */
    bool changes;        /* new priorities are drawn now and then */
};

static _Thread_local cpu_schedule *of_thread; /* NULL: the thread has no scheduled device */

/* ---- drawing -------------------------------------------------------------------------------- */

/* A number below n, by splitmix64. */
static uint32_t draw(cpu_schedule *x, uint32_t n)
{
    uint64_t z = (x->draw_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

static void player_init(cpu_schedule *x, cpu_player *p, cpu_stream *s)
{
    *p = (cpu_player){.stream = s, .priority = draw(x, UINT32_MAX)};
    pthread_cond_init(&p->has_turn, NULL);
}

static cpu_schedule *schedule_new(uint64_t seed)
{
    static const uint32_t host_parts[] = {1, HOST_PARTS / 2, HOST_PARTS - 1};
    cpu_schedule *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    TAILQ_INIT(&x->streams);
    x->draw_state = seed;
    uint32_t quarter = draw(x, 4);
    x->plays = quarter < 2 ? PLAY_PRIORITY : quarter == 2 ? PLAY_RANDOM : PLAY_NEWEST;
    x->host_parts = host_parts[draw(x, 3)];
    x->changes = draw(x, 2) == 0;
    pthread_mutex_init(&x->lock, NULL);
    player_init(x, &x->host, NULL);
    x->turn = &x->host;
    return x;
}

cpu_schedule *cpu_schedule_open(uint64_t seed)
{
    if (!of_thread)
        of_thread = schedule_new(seed);
    if (of_thread)
        of_thread->n_devices++;
    return of_thread;
}

void cpu_schedule_close(cpu_schedule *x)
{
    if (!x || --x->n_devices > 0)
        return;
    FSDP_ASSERT(x == of_thread && TAILQ_EMPTY(&x->streams));
    of_thread = NULL;
    pthread_cond_destroy(&x->host.has_turn);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

void cpu_player_add(cpu_schedule *x, cpu_player *p, cpu_stream *s, const cpu_queue_view *view)
{
    player_init(x, p, s);
    p->view = view;
    TAILQ_INSERT_TAIL(&x->streams, p, link);
}

void cpu_player_remove(cpu_schedule *x, cpu_player *p)
{
    TAILQ_REMOVE(&x->streams, p, link);
    pthread_cond_destroy(&p->has_turn);
}

/* ---- choosing the next player; x->lock is held ---------------------------------------------- */

/* The player with the oldest call among those in a call; NULL: no player is in a call. */
static cpu_player *oldest_begun(cpu_schedule *x)
{
    cpu_player *oldest = x->host.call != 0 ? &x->host : NULL, *p;
    TAILQ_FOREACH(p, &x->streams, link)
    {
        if (p->call != 0 && (!oldest || p->call < oldest->call))
            oldest = p;
    }
    return oldest;
}

/* Whether a call that may be older is unfinished. A task that waits for the host, begun or not, has
 * no number, so it may be older. */
static bool an_older_waits(cpu_schedule *x, uint64_t call)
{
    cpu_player *p;
    TAILQ_FOREACH(p, &x->streams, link)
    {
        const uint64_t first = p->view->first_call(p->stream);
        if (first < call || first == CPU_CALL_OF_HOST || p->call == CPU_CALL_OF_HOST)
            return true;
    }
    return false;
}

static bool is_preferred(cpu_schedule *x, const cpu_player *p, const cpu_player *to, uint32_t n)
{
    switch (x->plays) {
    case PLAY_RANDOM:
        return draw(x, n) == 0; /* p is the n-th candidate: each of n has the same chance */
    case PLAY_NEWEST:
        return p->newest > to->newest;
    case PLAY_PRIORITY:
        return p->priority > to->priority;
    }
    return false;
}

/* Whether p's first task can run now, or p's wait for the host is over. */
static bool can_run(const cpu_player *p)
{
    if (p->call == 0)
        return p->view->is_ready(p->stream);
    return p->call == CPU_CALL_OF_HOST && p->call_over;
}

/* Choose among the players that can run now; NULL: none can. */
static cpu_player *pick_ready(cpu_schedule *x, bool with_host)
{
    bool host_ready = with_host && x->host.call == 0 && (!x->over || x->over(x->over_self));
    bool weighed = x->plays != PLAY_PRIORITY;
    if (host_ready && weighed && draw(x, HOST_PARTS) < x->host_parts)
        return &x->host;
    cpu_player *best = host_ready && !weighed ? &x->host : NULL;
    uint32_t n = 0;
    cpu_player *p;
    TAILQ_FOREACH(p, &x->streams, link)
    {
        if (!can_run(p))
            continue;
        n++;
        if (!best || is_preferred(x, p, best, n))
            best = p;
    }
    return best ? best : host_ready ? &x->host : NULL;
}

static cpu_player *pick(cpu_schedule *x, bool with_host)
{
    cpu_player *begun = oldest_begun(x);
    if (begun && begun->call != CPU_CALL_OF_HOST && !an_older_waits(x, begun->call))
        return begun;
    cpu_player *p = pick_ready(x, with_host);
    if (!p && with_host)
        p = begun; /* nobody can run until this call is over */
    else if (!p)
        p = begun && begun->call_over ? begun : &x->host;
    if (p && x->changes && draw(x, CHANGE_EVERY) == 0)
        p->priority = draw(x, UINT32_MAX);
    return p;
}

/* ---- taking turns --------------------------------------------------------------------------- */
static void give(cpu_schedule *x, bool with_host)
{
    x->turn = pick(x, with_host);
    FSDP_ASSERT(x->turn && "the host waits for something that no stream will do");
    pthread_cond_signal(&x->turn->has_turn);
}

static void take(cpu_schedule *x, cpu_player *p)
{
    while (x->turn != p)
        pthread_cond_wait(&p->has_turn, &x->lock);
}

void cpu_schedule_take(cpu_schedule *x, cpu_player *p)
{
    pthread_mutex_lock(&x->lock);
    take(x, p);
    pthread_mutex_unlock(&x->lock);
}

void cpu_schedule_give(cpu_schedule *x)
{
    pthread_mutex_lock(&x->lock);
    give(x, true);
    pthread_mutex_unlock(&x->lock);
}

void cpu_schedule_call_begin(cpu_schedule *x, cpu_player *p, uint64_t call)
{
    pthread_mutex_lock(&x->lock);
    p->call = call;
    p->call_over = false;
    give(x, true);
    pthread_mutex_unlock(&x->lock);
}

void cpu_schedule_call_end(cpu_schedule *x, cpu_player *p)
{
    pthread_mutex_lock(&x->lock);
    p->call_over = true;
    if (p->call == CPU_CALL_OF_HOST && x->turn->call != 0 && !x->turn->call_over)
        x->turn = p; /* the other player's call may only end after p has run on */
    take(x, p);
    p->call = 0;
    pthread_mutex_unlock(&x->lock);
}

/* ---- the host ------------------------------------------------------------------------------- */

/* The host passes on the turn, perhaps to itself, and sleeps until it has the turn again. */
static void host_pass(cpu_schedule *x, bool with_host)
{
    pthread_mutex_lock(&x->lock);
    FSDP_ASSERT(x->turn == &x->host && "one thread uses a device with a scheduler, outside calls");
    give(x, with_host);
    take(x, &x->host);
    pthread_mutex_unlock(&x->lock);
}

void cpu_schedule_issued(cpu_schedule *x, cpu_player *p)
{
    p->newest = ++x->n_issued;
    host_pass(x, true);
}

void cpu_schedule_wait(cpu_schedule *x, bool (*over)(void *self), void *self)
{
    x->over = over;
    x->over_self = self;
    host_pass(x, true);
    x->over = NULL;
}

void cpu_schedule_polled(cpu_schedule *x)
{
    host_pass(x, false);
}

uint64_t cpu_schedule_number_call(cpu_schedule *x)
{
    return ++x->n_calls;
}

/* The scheduler belongs to the thread and serves all devices that the thread has opened, including
 * devices of other backends that use CPU streams. */
void device_host_call_begin(void)
{
    cpu_schedule *x = of_thread;
    if (x)
        cpu_schedule_call_begin(x, &x->host, cpu_schedule_number_call(x));
}

void device_host_call_end(void)
{
    if (of_thread)
        cpu_schedule_call_end(of_thread, &of_thread->host);
}
