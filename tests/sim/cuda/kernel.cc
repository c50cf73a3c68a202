/* kernel.cc -- runs the threads of a kernel one by one on the CPU.
 *
 * A thread runs until it ends or waits for others: at __syncthreads, or at an exchange between the
 * lanes of its warp. A waiting thread keeps its stack (a fiber) and the next thread runs. Blocks
 * run one after the other; but when a block counts itself with atomicInc, the next block runs to
 * its end first, so that this one may be the last and reads what the first has not written. Every
 * second block runs its threads from the last to the first, so that a missing barrier shows in one
 * of the two orders. One kernel runs at a time in a process: shared memory and the thread indices
 * are plain variables.
 *
 * If a GPU would hang, the process ends with a message: some threads of the block do not reach a
 * barrier, or threads reach different barriers. */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#include "tests/sim/cuda/sim.h"

enum { STACK_BYTES = 256 << 10, WARP = 32, MAX_THREADS = 1024, EXCHANGE_MAX_BYTES = 64 };
enum state { IDLE, READY, AT_BARRIER, AT_EXCHANGE };

/* For __builtin_setjmp and __builtin_longjmp, which only change stacks. They cost a third of the
 * library functions, and they are most of the cost of a barrier. */
typedef void *place_in_code[5];

struct fiber {
    place_in_code here;
    ucontext_t first;
    bool started;
    void *stack;
    state st;
    unsigned thread; /* its number in the block */
    bool fenced;     /* since the last barrier, or since it counted its block */
    bool counted;    /* it counted its block after the last barrier */
    void *fake;      /* AddressSanitizer's fake stack, while the fiber waits */
};

/* What the lanes of a warp exchange. A lane may deposit for the next exchange before other lanes
 * have read this one, so there are two sets of slots. */
struct warp {
    unsigned arrived, mask, n_exchanges;
    size_t bytes;
    const char *place;
    char slot[2][WARP * EXCHANGE_MAX_BYTES];
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern char __start_sim_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_sim_shared[] __attribute__((weak, visibility("hidden")));

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static const sim_kernel *kernel;
static unsigned n_threads;
static size_t next_block, n_blocks;

/* The block that runs. Another one may wait until it ends, and then has the other half of
 * all_fibers and all_warps. */
static fiber all_fibers[2][MAX_THREADS];
static warp all_warps[2][MAX_THREADS / WARP];
static struct running_block {
    fiber *fibers, *current, *of_thread[MAX_THREADS];
    warp *warps;
    place_in_code scheduler;
    unsigned n_taken, n_done, n_at_barrier;
    const char *barrier_place;
    bool backwards;
    uint3 number;
    const void *home_stack; /* of the scheduler, for AddressSanitizer */
    size_t home_bytes;
    void *home_fake;
} block;
static fiber *&fibers = block.fibers, *&current = block.current,
             **const of_thread = block.of_thread;
static warp *&warps = block.warps;
static place_in_code &scheduler = block.scheduler;
static unsigned &n_taken = block.n_taken, &n_done = block.n_done;
static unsigned &n_at_barrier = block.n_at_barrier;
static const char *&barrier_place = block.barrier_place;

/* one, other: lines of the kernel, or NULL. */
static void die(const char *what, const char *one = NULL, const char *other = NULL)
{
    fprintf(stderr,
            "CUDA stand-in: kernel %s, block (%u,%u,%u): %s%s%s%s%s\n"
            "HINT: a GPU would hang here, or go on with wrong values\n",
            kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, what, one ? ": " : "", one ? one : "",
            other ? " and " : "", other ? other : "");
    abort();
}

static void set_thread(unsigned t)
{
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
}

/* AddressSanitizer is told before and after each change of stacks. The scheduler runs on the stream
 * thread's stack, or on that of a thread whose block waits. */
static void leave_for(const void *stack, size_t bytes, void **fake)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#else
    (void)stack, (void)bytes, (void)fake;
#endif
}

static void arrive(void *fake, const void **from, size_t *from_bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, from, from_bytes);
#else
    (void)fake, (void)from, (void)from_bytes;
#endif
}

/* A separate function, because __builtin_longjmp must not be called in the function of the
 * __builtin_setjmp. noipa: other fibers run before the caller continues, so the compiler must
 * assume that jump changes memory and all registers that a call may change. */
static __attribute__((noipa)) void jump(place_in_code &to)
{
    __builtin_longjmp(to, 1);
}

static __attribute__((noinline)) void to_scheduler()
{
    if (__builtin_setjmp(current->here) == 0) {
        leave_for(block.home_stack, block.home_bytes, &current->fake);
        jump(scheduler);
    }
    arrive(current->fake, &block.home_stack, &block.home_bytes);
}

/* A fiber runs thread after thread, until one waits and another fiber has to go on. */
static void fiber_main()
{
    arrive(NULL, &block.home_stack, &block.home_bytes);
    for (;;) {
        while (n_taken < n_threads) {
            unsigned t = n_taken++;
            current->thread = block.backwards ? n_threads - 1 - t : t;
            current->fenced = current->counted = false;
            of_thread[current->thread] = current;
            set_thread(current->thread);
            kernel->body(kernel->args);
            n_done++;
        }
        current->st = IDLE;
        to_scheduler();
    }
}

static void *stack_new()
{
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        die("no memory for a stack");
    return stack;
}

static __attribute__((noinline)) void resume(fiber *f)
{
    current = f;
    set_thread(f->thread);
    if (f->stack == NULL)
        f->stack = stack_new();
    if (__builtin_setjmp(scheduler) != 0) {
        arrive(block.home_fake, NULL, NULL);
        return;
    }
    leave_for(f->stack, STACK_BYTES, &block.home_fake);
    if (f->started)
        jump(f->here);
    f->started = true;
    getcontext(&f->first);
    f->first.uc_stack.ss_sp = f->stack;
    f->first.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->first, fiber_main, 0);
    setcontext(&f->first);
}

static bool is_same(const char *place, const char *other)
{
    return place == other || strcmp(place, other) == 0;
}

/* ---- barriers and exchanges: the last thread to arrive lets all go on ------------------------ */

void sim_barrier(const char *place)
{
    if (current->counted && !current->fenced)
        die("a block is counted without a fence after it", place);
    current->counted = current->fenced = false;
    if (n_at_barrier == 0)
        barrier_place = place;
    else if (!is_same(barrier_place, place))
        die("threads wait at different barriers", barrier_place, place);
    if (++n_at_barrier == n_threads) {
        for (unsigned t = 0; t < n_threads; t++)
            of_thread[t]->st = READY;
        n_at_barrier = 0;
        return;
    }
    current->st = AT_BARRIER;
    to_scheduler();
}

unsigned sim_lane(void)
{
    return current->thread % WARP;
}

void sim_exchange(unsigned mask, const void *mine, size_t bytes, void *all, const char *place)
{
    const unsigned lane = current->thread % WARP, first = current->thread - lane;
    warp *w = &warps[first / WARP];
    if (bytes > EXCHANGE_MAX_BYTES || !(mask >> lane & 1))
        die("a thread takes part in an exchange whose mask is without it", place);
    if (w->arrived != 0 && (w->mask != mask || w->bytes != bytes || !is_same(w->place, place)))
        die("the lanes of a warp are at different exchanges", w->place, place);
    w->mask = mask;
    w->bytes = bytes;
    w->place = place;
    w->arrived |= 1u << lane;
    char *slot = w->slot[w->n_exchanges % 2];
    memcpy(slot + lane * bytes, mine, bytes);
    if (w->arrived != mask) {
        current->st = AT_EXCHANGE;
        to_scheduler();
    } else {
        for (unsigned l = 0; l < WARP; l++)
            if (mask >> l & 1)
                of_thread[first + l]->st = READY;
        w->arrived = 0;
        w->n_exchanges++;
    }
    memcpy(all, slot, WARP * bytes);
}

void sim_syncwarp(const char *place, unsigned mask)
{
    char none = 0, all[WARP];
    sim_exchange(mask, &none, 1, all, place);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Report that no thread can go on. */
static void die_stuck(unsigned n_used)
{
    const char *place = n_at_barrier > 0 ? barrier_place : NULL;
    for (unsigned i = 0; i < n_used && place == NULL; i++)
        if (fibers[i].st == AT_EXCHANGE)
            place = warps[fibers[i].thread / WARP].place;
    die(n_at_barrier == 0 ? "lanes wait for others of their warp that do not come"
        : n_done > 0      ? "threads wait at a barrier that others have passed by"
                          : "threads wait at a barrier, others for lanes that do not come",
        place);
}

static size_t shared_bytes()
{
    return __start_sim_shared != NULL ? (size_t)(__stop_sim_shared - __start_sim_shared) : 0;
}

/* Let threads of a warp go on that can; false if none can. A warp goes on until its threads wait
 * for other warps, so it overwrites at once what these have not yet read. */
static bool resume_ready(unsigned first, unsigned n_used)
{
    bool any = false;
    for (unsigned i = first; i < first + WARP && i < n_used; i++)
        if (fibers[i].st == READY) {
            any = true;
            resume(&fibers[i]);
        }
    return any;
}

/* Run the kernel's next block, in the half of all_fibers and all_warps that no other block has. */
static void run_block(int half)
{
    static bool backwards;
    const unsigned x = gridDim.x, y = gridDim.y;
    unsigned n_used = 0;
    const size_t n = next_block++;
    block = {};
    block.backwards = backwards;
    backwards = !backwards;
    fibers = all_fibers[half];
    warps = all_warps[half];
    blockIdx = block.number = {(unsigned)(n % x), (unsigned)(n / x % y), (unsigned)(n / x / y)};
    if (shared_bytes() > 0)
        memset(__start_sim_shared, 0xFF, shared_bytes());
    for (unsigned i = 0; i < (n_threads + WARP - 1) / WARP; i++)
        warps[i].arrived = 0;
    while (n_taken < n_threads) {
        fiber *f = &fibers[n_used++];
        f->st = READY;
        resume(f);
    }
    while (n_done < n_threads) {
        bool any = false;
        for (unsigned first = 0; first < n_used; first += WARP)
            while (resume_ready(first, n_used))
                any = true;
        if (!any)
            die_stuck(n_used);
    }
}

/* Let the block of this thread wait until the next one has run. The next one then lets none wait.
 */
static __attribute__((noipa)) void run_next_block_first()
{
    if (fibers == all_fibers[1] || next_block == n_blocks)
        return;
    const running_block waiting = block;
    char *shared = (char *)malloc(shared_bytes() + 1);
    if (shared == NULL)
        die("no memory for a block that waits");
    memcpy(shared, __start_sim_shared, shared_bytes());
    run_block(1);
    memcpy(__start_sim_shared, shared, shared_bytes());
    free(shared);
    block = waiting;
    blockIdx = block.number;
    set_thread(current->thread);
}

void sim_fence(void)
{
    current->fenced = true;
}

unsigned sim_count_block(const char *place, unsigned *at, unsigned most)
{
    const unsigned old = *at;
    if (!current->fenced)
        die("a block is counted without a fence before it", place);
    current->counted = true;
    current->fenced = false;
    *at = old >= most ? 0 : old + 1;
    run_next_block_first();
    return old;
}

static fsdp_status run_kernel(void *args, int)
{
    const sim_kernel *k = (const sim_kernel *)args;
    pthread_mutex_lock(&running);
    kernel = k;
    blockDim = k->block;
    gridDim = k->grid;
    n_threads = k->block.x * k->block.y * k->block.z;
    n_blocks = (size_t)k->grid.x * k->grid.y * k->grid.z;
    for (next_block = 0; next_block < n_blocks;)
        run_block(0);
    pthread_mutex_unlock(&running);
    k->discard(k->args);
    return FSDP_OK;
}

cudaError_t sim_launch_kernel(const sim_kernel &k, cudaStream_t s)
{
    const unsigned n = k.block.x * k.block.y * k.block.z;
    if (n == 0 || n > MAX_THREADS || k.grid.x == 0 || k.grid.y == 0 || k.grid.z == 0 ||
        k.grid.y > 65535 || k.grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    sim_load(k.code);
    cudaError_t error = sim_before_launch(k.name);
    if (error != cudaSuccess)
        return error;
    fsdp_status status = stream_launch(sim_stream(s), run_kernel, &k, sizeof k);
    sim_after_launch(s);
    return status == FSDP_OK ? cudaGetLastError() : cudaErrorLaunchFailure; /* maybe an older one */
}
