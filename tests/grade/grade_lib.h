/* grade_lib.h -- the frame and the checks that all task tests share.
 *
 *   build/tests/grade/labN --task 2.1 [--task 2.2 ...]     by build/fsdp_run -n W; W = 1: alone
 *
 * Rank 0 prints one verdict per task, then every rank prints a done-marker. The grader
 * (tests/grade/grade.sh) requires both: "VERDICT 2.1 PASS", "VERDICT 2.1 FAIL rank 2: ...",
 * "VERDICT 2.1 TODO", "VERDICT 2.1 BLOCKED needs 1.3", "VERDICT 2.1 SKIP why"; "DONE 2.1 rank r/W".
 * A rank whose check fails also prints "RANKFAIL 2.1 r FSDP_EINVAL what[index]: got g, expected w"
 * and, if the failure has a hint, "RANKHINT 2.1 r what to do". watchdog_lib.h describes what a rank
 * prints when it crashes, exits or hangs. All ranks agree on the verdict, so a failure on one rank
 * leaves no other rank waiting. The program ends after a failed task, because the state of that
 * task could disturb the next one.
 *
 * The device has debug_fill (fresh and freed memory is NaN) and async_compute: the compute stream
 * is a worker thread, so the host runs ahead and a missing wait shows. A checker also watches the
 * device and finds a missing event whatever the timing. Its report replaces other failures of the
 * task. The host reads device memory with grade_read and writes it with grade_write. */
#pragma once
#include <stdatomic.h>
#include <time.h>
#include "common/comm/comm.h"
#include "common/device/instruments/order_check.h"
#include "common/ops/ops.h"

typedef struct grade {
    comm *comm;
    device *dev;
    stream *compute;
    order_check *order; /* watches every device of the tests */
    const ops *ops;     /* portable */
    int rank, world_size;
    atomic_int gate;       /* see gate_close */
    clockid_t gate_closer; /* CPU clock of the thread that closed the gate */
} grade;

typedef struct grade_task {
    const char *id;               /* "2.1" */
    fsdp_status (*run)(grade *g); /* FSDP_OK: pass; FSDP_ETODO; FSDP_ESKIP; other: fail */
} grade_task;

/* grade_device_open -- open the device under test (target_lib.h); g->order watches it. */
fsdp_status grade_device_open(grade *g, const device_config *config, device **out);

/* grade_is_broken -- whether a status says that the ranks no longer make the same calls. */
bool grade_is_broken(fsdp_status st);

/* grade_main -- the main of a test program. Returns 0 if no task failed, else nonzero. */
int grade_main(int argc, char **argv, const grade_task *tasks, int n_tasks);

/* EXPECT -- FSDP_OK if cond, else FSDP_EINVAL with this message: which call, of which unit, got
 * what, expected what. hint: see fsdp_error. */
#define EXPECT(cond, hint, ...) ((cond) ? FSDP_OK : fsdp_error(FSDP_EINVAL, hint, __VA_ARGS__))

/* WHAT -- format the `what` of a check. The text is valid until the end of the block. */
enum { WHAT_BYTES = 160 };
#define WHAT(...) grade_words((char[WHAT_BYTES]){0}, __VA_ARGS__)
const char *grade_words(char *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Checks return FSDP_OK, or FSDP_EINVAL with the first difference as the message: "what[index]: got
 * g, expected w". expect_f32 compares bits (any NaN equals any NaN). */
fsdp_status expect_f32(const char *what, const float *got, const float *want, size_t elems);
fsdp_status expect_close(const char *what, const float *got, const float *want, size_t elems,
                         double abs_tol, double rel_tol);
/* expect_within -- |got - want| <= tol, else FSDP_EINVAL naming what[i]. */
fsdp_status expect_within(const char *what, size_t i, float got, double want, double tol);
fsdp_status expect_int(const char *what, long long got, long long want);
fsdp_status expect_size(const char *what, size_t got, size_t want);
/* expect_state -- compare unit states: SHARDED, GATHERING or GATHERED. */
fsdp_status expect_state(const char *what, int got, int want);
fsdp_status expect_text(const char *what, const char *got, const char *want);
/* expect_view -- got points at element `offset` of the unit's gathered array (or of its gradient
 * array). If array is NULL, got must be NULL. */
fsdp_status expect_view(const char *what, const void *got, const void *array, size_t offset,
                        size_t elem_bytes);
/* expect_status -- compare statuses; FSDP_ETODO (not written) is returned unchanged. */
fsdp_status expect_status(const char *what, fsdp_status got, fsdp_status want);

/* grade_read -- copy src [bytes] to host after everything issued on s; waits for s. */
fsdp_status grade_read(stream *s, const void *src, size_t bytes, void *host);
/* grade_fetch -- grade_read without the wait: host is valid when s has run the copy. */
fsdp_status grade_fetch(stream *s, const void *src, size_t bytes, void *host);
/* grade_write -- copy host [bytes] to dst, in order of s. host may be reused at once. */
fsdp_status grade_write(stream *s, void *dst, const void *host, size_t bytes);
/* grade_launch -- run fn(args) on s, a test kernel that writes one array. */
fsdp_status grade_launch(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                         mem_access array);
/* grade_add -- add `even` to elements 0, 2, ... of x [elems] and `odd` to the others, on the
 * device, in order of s. */
fsdp_status grade_add(stream *s, float *x, size_t elems, float even, float odd);
/* grade_launch_idle -- run fn(args) on s; fn touches no device memory.
 *   name  a literal for reports and timelines; NULL: not counted as work */
fsdp_status grade_launch_idle(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                              const char *name);
/* grade_no_leak -- FSDP_OK if the device has no live memory. */
fsdp_status grade_no_leak(device *dev);
/* reaches -- whether the recorded event e completes within limit_ms. */
bool reaches(event *e, int limit_ms);

/* A gate holds up a stream: work issued on s after gate_close runs only after gate_open. Only one
 * gate exists at a time. If the host waits for the stream where it must run ahead, it would wait
 * forever. Therefore the gate opens by itself when the thread that closed it has slept for
 * GATE_SLEEP_S without waking once, or after GATE_LIMIT_S. gate_check and gate_open then fail and
 * name `what` the host was doing. The end of a task opens a gate that is still closed. */
enum { GATE_SLEEP_S = 2, GATE_LIMIT_S = 12 };
fsdp_status gate_close(grade *g, stream *s);
/* gate_arm -- close the gate without a stream. The test launches gate_hold itself; its argument is
 * a grade *. */
void gate_arm(grade *g);
fsdp_status gate_hold(void *args, int n_threads);
fsdp_status gate_check(grade *g, const char *what);
fsdp_status gate_open(grade *g, const char *what);
