/* guard.c -- see guard.h. */
#include "common/device/guard.h"
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include "common/base/under_asan.h"
#if UNDER_ASAN
#include <sanitizer/asan_interface.h>
#else /* the header's own definitions for builds without AddressSanitizer */
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { BY_NOTHING, BY_KEY, BY_POISON, BY_PAGES };

static atomic_int guarded_by; /* BY_NOTHING before guard_open */
static int key;               /* valid if guarded_by is BY_KEY */

/* Lies at the beginning of the mapping that it describes, in the open page. */
typedef struct mapping {
    size_t bytes; /* including the open page */
    bool is_open; /* BY_PAGES: its guarded pages are accessible, and it is in `opened` */
    LIST_ENTRY(mapping) link;
} mapping;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards mappings, opened, n_rights */
static void *mappings;                                   /* tsearch, by address */
static LIST_HEAD(, mapping) opened;
static int n_rights; /* threads that have the right; not used with BY_KEY */
static _Thread_local bool has_right;
static struct {
    guard_forbidden_fn forbidden;
    struct sigaction before; /* the handler of SIGSEGV that this one replaced */
} fault;

/* ---- the mappings; lock is held ------------------------------------------------------------- */

/* For tfind, addr is any address in the mapping; for tsearch, the beginning of a new one. */
static int mapping_compare(const void *addr, const void *node)
{
    const mapping *m = node;
    if ((uintptr_t)addr < (uintptr_t)m)
        return -1;
    return (uintptr_t)addr - (uintptr_t)m >= m->bytes;
}

static mapping *mapping_at(const void *addr)
{
    mapping **node = tfind(addr, &mappings, mapping_compare);
    return node != NULL ? *node : NULL;
}

static void poison(mapping *m, bool on)
{
    char *at = (char *)m + PAGE_BYTES;
    size_t bytes = m->bytes - PAGE_BYTES;
    if (on)
        ASAN_POISON_MEMORY_REGION(at, bytes);
    else
        ASAN_UNPOISON_MEMORY_REGION(at, bytes);
}

static void poison_node(const void *node, VISIT order, void *on)
{
    if (order == postorder || order == leaf)
        poison(*(mapping *const *)node, *(bool *)on);
}

static bool pages_set(mapping *m, bool open)
{
    int rights = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    m->is_open = open;
    if (open)
        LIST_INSERT_HEAD(&opened, m, link);
    else
        LIST_REMOVE(m, link);
    return mprotect((char *)m + PAGE_BYTES, m->bytes - PAGE_BYTES, rights) == 0;
}

/* Close a new mapping, which is not in `mappings` yet. */
static bool close_fresh(mapping *m)
{
    char *at = (char *)m + PAGE_BYTES;
    size_t bytes = m->bytes - PAGE_BYTES;
    switch (atomic_load(&guarded_by)) {
    case BY_KEY:
        return pkey_mprotect(at, bytes, PROT_READ | PROT_WRITE, key) == 0;
    case BY_POISON:
        poison(m, n_rights == 0);
        return true;
    default:
        return mprotect(at, bytes, PROT_NONE) == 0;
    }
}

/* Called after the first thread got the right (any: true), or the last one gave it back (false). */
static void rights_changed(bool any)
{
    mapping *m;
    if (guarded_by == BY_POISON) {
        bool on = !any;
        twalk_r(mappings, poison_node, &on);
        return;
    }
    while (!any && (m = LIST_FIRST(&opened)) != NULL) {
        bool is_closed = pages_set(m, false);
        FSDP_ASSERT(is_closed && "the system refused to close guarded memory");
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* A kernel may fault anywhere, also in code that a library generated and that uses the stack
 * pointer as an ordinary register. A handler on the thread's stack would then overwrite memory, so
 * signals have a stack of their own. */
enum { SIGNAL_STACK_BYTES = 1 << 17 };
static pthread_key_t signal_stack; /* made by guard_open */

static void signal_stack_free(void *at)
{
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    munmap(at, SIGNAL_STACK_BYTES);
}

/* Give the calling thread a signal stack if it has none. */
static void signal_stack_need(void)
{
    static _Thread_local bool has_stack;
    stack_t now;
    if (has_stack)
        return;
    has_stack = true;
    if (sigaltstack(NULL, &now) == 0 && !(now.ss_flags & SS_DISABLE))
        return;
    void *at =
        mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool is_set = at != MAP_FAILED && pthread_setspecific(signal_stack, at) == 0 &&
                  sigaltstack(&(stack_t){.ss_sp = at, .ss_size = SIGNAL_STACK_BYTES}, NULL) == 0;
    FSDP_ASSERT(is_set && "no memory for a signal stack");
}

void *guard_find(const void *addr)
{
    pthread_mutex_lock(&lock);
    mapping *m = mapping_at(addr);
    pthread_mutex_unlock(&lock);
    return m;
}

/* If the thread has the right, open the mapping. Returns whether the access can run again. */
static bool admit(const void *addr)
{
    pthread_mutex_lock(&lock);
    mapping *m = guarded_by == BY_PAGES && has_right ? mapping_at(addr) : NULL;
    bool may = m != NULL && (m->is_open || pages_set(m, true));
    pthread_mutex_unlock(&lock);
    return may;
}

/* End the process by the signal's default action. Running the access again would not do: another
 * thread may have opened the memory by now. The lock is never released, so that no other thread
 * sets the handler again. */
static void end_process(int number)
{
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    pthread_mutex_lock(&lock);
    sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(number);
}

/* After a return the access runs again: an admitted access succeeds. If the fault was not in
 * guarded memory, the earlier handler gets it now. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    if (admit(info->si_addr))
        return;
    if (guard_find(info->si_addr) != NULL) {
        fault.forbidden(info->si_addr, context);
        end_process(number);
    }
    pthread_mutex_lock(&lock);
    sigaction(number, &fault.before, NULL);
    pthread_mutex_unlock(&lock);
}

/* Set the handler. Libraries such as cmocka replace it for a while, so this is called again
 * whenever faults are expected. */
static void catch_faults(void)
{
    struct sigaction now, mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
        return;
    sigemptyset(&mine.sa_mask);
    fault.before = now;
    sigaction(SIGSEGV, &mine, NULL);
}

/* ---- the interface --------------------------------------------------------------------------- */
void guard_open(guard_forbidden_fn forbidden)
{
    pthread_mutex_lock(&lock);
    if (guarded_by == BY_NOTHING) {
        int err = pthread_key_create(&signal_stack, signal_stack_free);
        FSDP_ASSERT(err == 0);
        key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        guarded_by = key >= 0 ? BY_KEY : UNDER_ASAN ? BY_POISON : BY_PAGES;
    }
    fault.forbidden = forbidden;
    catch_faults();
    pthread_mutex_unlock(&lock);
}

void *guard_map(size_t bytes)
{
    FSDP_ASSERT(guarded_by != BY_NOTHING && bytes % PAGE_BYTES == 0);
    mapping *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return NULL;
    m->bytes = bytes;
    pthread_mutex_lock(&lock);
    bool is_guarded = close_fresh(m) && tsearch(m, &mappings, mapping_compare) != NULL;
    pthread_mutex_unlock(&lock);
    if (is_guarded)
        return m;
    munmap(m, bytes);
    return NULL;
}

void guard_unmap(void *base, size_t bytes)
{
    mapping *m = base;
    pthread_mutex_lock(&lock);
    tdelete(m, &mappings, mapping_compare);
    if (m->is_open)
        LIST_REMOVE(m, link);
    if (guarded_by == BY_POISON)
        poison(m, false);
    pthread_mutex_unlock(&lock);
    munmap(m, bytes);
}

bool guard_right(void)
{
    int by = atomic_load_explicit(&guarded_by, memory_order_relaxed);
    return by == BY_KEY ? pkey_get(key) == 0 : has_right;
}

bool guard_right_set(bool right)
{
    int by = atomic_load_explicit(&guarded_by, memory_order_relaxed);
    bool before = guard_right();
    if (by == BY_KEY) {
        pkey_set(key, right ? 0 : PKEY_DISABLE_ACCESS);
    } else if (by != BY_NOTHING && right != before) {
        pthread_mutex_lock(&lock);
        if (by == BY_PAGES && right) {
            signal_stack_need();
            catch_faults();
        }
        has_right = right;
        n_rights += right ? 1 : -1;
        if (n_rights == (right ? 1 : 0))
            rights_changed(right);
        pthread_mutex_unlock(&lock);
    }
    return before;
}
