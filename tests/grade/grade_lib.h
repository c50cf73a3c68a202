/* grade_lib.h -- what the task tests of the labs share.
 *
 *   build/tests/grade/labN --task 2.1 [--task 2.2 ...]     under mpiexec -n W, or alone for W = 1
 *
 * Rank 0 prints one verdict per task, then every rank a done-marker; the grader
 * (tests/grade/grade.sh) requires both: "VERDICT 2.1 PASS", "VERDICT 2.1 FAIL rank 2: ...",
 * "VERDICT 2.1 TODO", "VERDICT 2.1 BLOCKED needs 1.3", "VERDICT 2.1 SKIP why"; "DONE 2.1 rank r/W".
 * A rank whose check fails also prints "RANKFAIL 2.1 r FSDP_EINVAL what[index]: got g, expected w"
 * and, if the failure has a hint, "RANKHINT 2.1 r what to do". watchdog_lib.h has what a rank
 * prints that crashes, exits or hangs. The verdict is agreed on by all ranks, so one rank's failure
 * strands nobody. After a failed task the program ends: what it left behind would blur the next
 * one.
 *
 * The device has debug_fill (fresh and freed memory is NaN) and async_compute: the compute stream
 * is a worker as well, so the host runs ahead and a missing wait shows. A checker watches it too,
 * which finds a missing event whatever the timing; its report comes before other failures of the
 * task. The host reads device memory with grade_read and writes it with grade_write. */
#pragma once
#include <stdatomic.h>
#include <time.h>
#include "common/comm/comm.h"
#include "common/device/order_check.h"
#include "common/ops/ops.h"

typedef struct grade {
    comm *comm;
    device *dev;
    stream *compute;
    order_check *order; /* watches every device of the tests */
    const ops *ops;     /* portable */
    int rank, world_size;
    atomic_int gate;       /* see gate_close */
    clockid_t gate_closer; /* the CPU time of the thread that closed it */
} grade;

typedef struct grade_task {
    const char *id;               /* "2.1" */
    fsdp_status (*run)(grade *g); /* FSDP_OK: pass; FSDP_ETODO: unwritten; FSDP_ESKIP; else: fail */
} grade_task;

/* grade_device_open -- device_open of the device under test (target_lib.h), under g->order. */
fsdp_status grade_device_open(grade *g, const device_config *config, device **out);

/* grade_main -- what a test program's main returns: 0 if no task failed, else another. */
int grade_main(int argc, char **argv, const grade_task *tasks, int n_tasks);

/* EXPECT -- FSDP_OK if cond, else FSDP_EINVAL in the words that follow: which call, of which unit,
 * got what, expected what. hint: as fsdp_error's. */
#define EXPECT(cond, hint, ...) ((cond) ? FSDP_OK : fsdp_error(FSDP_EINVAL, hint, __VA_ARGS__))

/* WHAT -- the words of a printf, as the `what` of a check; they are valid in the block. */
enum { WHAT_BYTES = 160 };
#define WHAT(...) grade_words((char[WHAT_BYTES]){0}, __VA_ARGS__)
const char *grade_words(char *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Checks: FSDP_OK, or FSDP_EINVAL whose message is the first difference: "what[index]: got g,
 * expected w". expect_f32 compares bits (any NaN equals any NaN). */
fsdp_status expect_f32(const char *what, const float *got, const float *want, size_t elems);
fsdp_status expect_close(const char *what, const float *got, const float *want, size_t elems,
                         double abs_tol, double rel_tol);
/* expect_within -- |got - want| <= tol, else FSDP_EINVAL naming what[i]. */
fsdp_status expect_within(const char *what, size_t i, float got, double want, double tol);
fsdp_status expect_int(const char *what, long long got, long long want);
fsdp_status expect_size(const char *what, size_t got, size_t want);
/* expect_state -- of a unit: SHARDED, GATHERING or GATHERED. */
fsdp_status expect_state(const char *what, int got, int want);
fsdp_status expect_text(const char *what, const char *got, const char *want);
/* expect_view -- got points at element `offset` of the unit's gathered array (its gradients', ...);
 * array NULL: got must be NULL. */
fsdp_status expect_view(const char *what, const void *got, const void *array, size_t offset,
                        size_t elem_bytes);
/* expect_status -- an unwritten function (FSDP_ETODO) is passed on as such. */
fsdp_status expect_status(const char *what, fsdp_status got, fsdp_status want);

/* grade_read -- host [bytes] = src as it is behind everything issued on s; waits for s. */
fsdp_status grade_read(stream *s, const void *src, size_t bytes, void *host);
/* grade_fetch -- the same, and the host goes on: it may look when s has got there. */
fsdp_status grade_fetch(stream *s, const void *src, size_t bytes, void *host);
/* grade_write -- dst [bytes] = host, in order of s; host may be used again at once. */
fsdp_status grade_write(stream *s, void *dst, const void *host, size_t bytes);
/* grade_launch -- run fn(args) on s, a kernel of a test that writes one array. */
fsdp_status grade_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                         mem_access array);
/* grade_add -- x [elems], on the device: add `even` to elements 0, 2, ..., and `odd` to the others,
 * in order of s. */
fsdp_status grade_add(stream *s, float *x, size_t elems, float even, float odd);
/* grade_launch_idle -- run fn(args) on s, which touches no device memory.
 *   name  a literal for reports and timelines; NULL: not counted as work */
fsdp_status grade_launch_idle(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                              const char *name);
/* grade_no_leak -- FSDP_OK if no memory of the device is live. */
fsdp_status grade_no_leak(device *dev);
/* reaches -- whether e, which is recorded, is done within limit_ms. */
bool reaches(event *e, int limit_ms);

/* A gate holds up a stream: work issued on s after gate_close runs only after gate_open. One gate
 * at a time. A host that waits for the stream where it must run ahead would wait forever: the gate
 * gives up when the thread that closed it has slept for GATE_SLEEP_S without waking once, or after
 * GATE_LIMIT_S. gate_check and gate_open fail then, naming `what` the host was doing. Without
 * gate_open the end of the task opens the gate. */
enum { GATE_SLEEP_S = 2, GATE_LIMIT_S = 12 };
fsdp_status gate_close(grade *g, stream *s);
/* gate_arm -- close the gate, and let the test put it on a stream: gate_hold, with a grade *. */
void gate_arm(grade *g);
fsdp_status gate_hold(void *args, int n_threads);
fsdp_status gate_check(grade *g, const char *what);
fsdp_status gate_open(grade *g, const char *what);
