/* coll.c -- see coll_impl.h: ids, communicators, and the processes of other ranks. */
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "tests/sim/core/coll_impl.h"

enum { BOARDS = 256 };

/* The boards that this process has opened, including its own. */
static struct {
    pthread_mutex_t lock;
    uint64_t own;
    int n;
    struct {
        uint64_t number;
        coll_board *board;
        int pidfd; /* -1 if the process cannot be watched */
    } seen[BOARDS];
} boards = {.lock = PTHREAD_MUTEX_INITIALIZER};

void coll_report(const char *format, ...)
{
    const char *hangs = getenv("FSDP_SIM_HANGS");
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "%s stand-in: %s\nHINT: %s would wait for ever here, or deliver wrong values\n",
            coll_stands_for.name, text, coll_stands_for.name);
    fflush(stderr);
    if (hangs == NULL || atoi(hangs) == 0)
        abort();
}

void coll_wake(coll_area *area)
{
    atomic_fetch_add(&area->changed, 1);
    (void)syscall(SYS_futex, &area->changed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- memory of other processes --------------------------------------------------------------- */

static int shared_open(const coll_id *id)
{
    char path[64];
    if (id->pid == getpid())
        return id->fd;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void *shared_map(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at != MAP_FAILED ? at : NULL;
}

static bool shared_make(coll_id *id, size_t bytes)
{
    *id = (coll_id){getpid(), memfd_create("collectives of a stand-in", MFD_CLOEXEC)};
    return id->fd >= 0 && ftruncate(id->fd, (off_t)bytes) == 0;
}

/* A board number holds the process id and the file number in that process. */
static coll_id board_id(uint64_t number)
{
    return (coll_id){(int)(number >> 32), (int)(number & 0xffffffff)};
}

/* The board's index in `seen`; -1 if its process is gone. The caller holds the lock. */
static int board_find(uint64_t number)
{
    for (int i = 0; i < boards.n; i++)
        if (boards.seen[i].number == number)
            return i;
    const coll_id id = board_id(number);
    int fd = boards.n < BOARDS ? shared_open(&id) : -1;
    coll_board *board = fd >= 0 ? shared_map(fd, sizeof *board) : NULL;
    if (fd >= 0 && id.pid != getpid())
        close(fd);
    if (board == NULL)
        return -1;
    boards.seen[boards.n].number = number;
    boards.seen[boards.n].board = board;
    boards.seen[boards.n].pidfd = (int)syscall(SYS_pidfd_open, id.pid, 0);
    return boards.n++;
}

coll_board *coll_board_of(uint64_t number)
{
    pthread_mutex_lock(&boards.lock);
    const int i = board_find(number);
    pthread_mutex_unlock(&boards.lock);
    return i >= 0 ? boards.seen[i].board : NULL;
}

bool coll_has_ended(uint64_t number)
{
    pthread_mutex_lock(&boards.lock);
    const int i = board_find(number);
    pthread_mutex_unlock(&boards.lock);
    struct pollfd look = {.fd = i >= 0 ? boards.seen[i].pidfd : -1, .events = POLLIN};
    return i < 0 || poll(&look, 1, 0) == 1;
}

uint64_t coll_own_board(int rank)
{
    coll_id id;
    if (boards.own == 0 && shared_make(&id, sizeof(coll_board))) {
        boards.own = (uint64_t)id.pid << 32 | (uint64_t)id.fd;
        coll_board_of(boards.own)->rank = rank;
    }
    return boards.own;
}

/* ---- communicators --------------------------------------------------------------------------- */

coll_process *coll_process_of(const coll_comm *c, int rank)
{
    return &c->area->process[c->member[rank]];
}

bool coll_id_make(coll_id *id)
{
    return shared_make(id, sizeof(coll_area));
}

static const char *process_enter(coll_comm *c, int device)
{
    coll_process *me = coll_process_of(c, c->rank);
    int n = 0;
    if (!atomic_compare_exchange_strong(&c->area->n, &n, c->n) && n != c->n)
        return "the ranks do not agree how many they are";
    if ((me->board = coll_own_board(c->rank)) == 0)
        return "no shared memory";
    me->device = device;
    if (atomic_exchange(&me->joined, 1) != 0)
        return "two processes are one rank";
    coll_wake(c->area);
    return NULL;
}

const char *coll_join(const coll_id *id, int n, int rank, int device, coll_comm **out)
{
    if (n < 1 || n > COLL_RANKS || rank < 0 || rank >= n)
        return "the rank, or the number of ranks, is none";
    int fd = shared_open(id);
    if (fd < 0)
        return "the id is none, or its process has ended";
    coll_comm *c = calloc(1, sizeof *c);
    if (c != NULL)
        *c = (coll_comm){.area = shared_map(fd, sizeof *c->area), .n = n, .rank = rank, .name = 1};
    if (c == NULL || c->area == NULL) {
        free(c);
        return "no memory";
    }
    c->fd = id->pid == getpid() ? fd : -1;
    if (c->fd < 0)
        close(fd);
    for (int r = 0; r < n; r++)
        c->member[r] = r;
    atomic_init(&c->uses, 1);
    atomic_init(&c->state, COLL_JOINING);
    const char *wrong = process_enter(c, device);
    if (wrong == NULL)
        *out = c;
    else
        coll_release(c);
    return wrong;
}

static coll_state join_look(const coll_comm *c)
{
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&coll_process_of(c, r)->joined) == 0)
            return COLL_JOINING;
    for (int r = 0; r < c->n; r++)
        for (int o = 0; o < r; o++)
            if (coll_process_of(c, r)->device == coll_process_of(c, o)->device)
                return COLL_DUPLICATE;
    return COLL_READY;
}

coll_state coll_look(coll_comm *c)
{
    if (atomic_load(&c->state) != COLL_JOINING)
        return atomic_load(&c->state);
    const coll_state state = join_look(c);
    for (int r = 0; r < c->n && state == COLL_READY; r++)
        (void)coll_board_of(coll_process_of(c, r)->board);
    if (state == COLL_READY && c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
    atomic_store(&c->state, state);
    return state;
}

coll_state coll_await(coll_comm *c, double limit_s)
{
    const double until_s = clock_now_s() + limit_s;
    while (coll_look(c) == COLL_JOINING && clock_now_s() < until_s)
        usleep(100);
    if (coll_look(c) == COLL_JOINING) /* a rank that joins later must not count on this one */
        atomic_store(&coll_process_of(c, c->rank)->joined, 0);
    return coll_look(c);
}

void coll_watch(coll_comm *c, double limit_s, double lost_s)
{
    c->limit_s = limit_s;
    c->lost_s = lost_s;
}

void coll_release(coll_comm *c)
{
    if (atomic_fetch_sub(&c->uses, 1) > 1)
        return;
    if (c->root != NULL) {
        coll_release(c->root);
    } else {
        munmap(c->area, sizeof *c->area);
        if (c->fd >= 0)
            close(c->fd);
    }
    free(c);
}

int coll_rank(const coll_comm *c)
{
    return c->rank;
}

int coll_ranks(const coll_comm *c)
{
    return c->n;
}

/* ---- parts of a communicator ----------------------------------------------------------------- */

/* A name for a pair of numbers, mixed like the output step of splitmix64. */
static uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t x = a + b * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Fill in the members of the parent with this color, ordered by (key, rank). */
static void child_fill(const coll_comm *c, coll_comm *child)
{
    for (int r = 0; r < c->n; r++) {
        const coll_process *mine = coll_process_of(c, r);
        if (mine->color != c->color)
            continue;
        int place = 0;
        for (int o = 0; o < c->n; o++) {
            const coll_process *other = coll_process_of(c, o);
            if (other->color == mine->color &&
                (other->key < mine->key || (other->key == mine->key && o < r)))
                place++;
        }
        child->member[place] = c->member[r];
        child->rank = r == c->rank ? place : child->rank;
        child->n++;
    }
}

static coll_comm *child_make(coll_comm *c)
{
    coll_comm *child = calloc(1, sizeof *child);
    if (child == NULL)
        return NULL;
    child->area = c->area;
    child->root = c->root != NULL ? c->root : c;
    child->fd = -1;
    atomic_fetch_add(&child->root->uses, 1);
    atomic_init(&child->uses, 1);
    child->name = mixed(c->split_tag, (uint64_t)c->color);
    child_fill(c, child);
    return child;
}

void coll_split(coll_comm *c, int color, int key)
{
    coll_process *me = coll_process_of(c, c->rank);
    c->split_tag = mixed(c->name, ++c->n_splits);
    c->color = me->color = color;
    me->key = key;
    atomic_store(&me->ready, c->split_tag);
}

/* No rank leaves the split before all ranks have seen it, because a rank's slot is reused after it
 * leaves. */
bool coll_split_look(coll_comm *c, coll_comm **child)
{
    coll_process *me = coll_process_of(c, c->rank);
    if (atomic_load(&me->done) != c->split_tag) {
        for (int r = 0; r < c->n; r++)
            if (atomic_load(&coll_process_of(c, r)->ready) != c->split_tag)
                return false;
        *child = c->color >= 0 ? child_make(c) : NULL;
        atomic_store(&me->done, c->split_tag);
    }
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&coll_process_of(c, r)->ready) == c->split_tag &&
            atomic_load(&coll_process_of(c, r)->done) != c->split_tag)
            return false;
    return true;
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool is_ready_for(const coll_process *p, uint64_t meeting)
{
    const int n = atomic_load(&p->n_meetings);
    for (int i = 0; i < n; i++)
        if (atomic_load(&p->meeting[i]) == meeting)
            return true;
    return false;
}

static void be_ready_for(coll_process *me, uint64_t meeting)
{
    const int n = atomic_load(&me->n_meetings);
    if (n == COLL_MEETINGS)
        coll_report("more than %d connections, for which the stand-in has no room", COLL_MEETINGS);
    atomic_store(&me->meeting[n % COLL_MEETINGS], meeting);
    atomic_store(&me->n_meetings, n % COLL_MEETINGS + 1);
}

bool coll_meet(coll_comm *c, int peer)
{
    coll_process *me = coll_process_of(c, c->rank);
    const uint64_t mine = mixed(c->name, (uint64_t)(peer + 1));
    if (!is_ready_for(me, mine))
        be_ready_for(me, mine);
    if (peer != COLL_ALL)
        return is_ready_for(coll_process_of(c, peer), mixed(c->name, (uint64_t)(c->rank + 1)));
    for (int r = 0; r < c->n; r++)
        if (!is_ready_for(coll_process_of(c, r), mine))
            return false;
    return true;
}
