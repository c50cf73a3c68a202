/* cpu_schedule.h -- the adversarial scheduler of the CPU backend, which decides in which order the
 * streams and the host run; private to common/device.
 *
 *   cpu_schedule_open (device_config has a schedule_seed) -> cpu_player_add for each stream
 *   -> the streams' threads and the host take turns -> cpu_player_remove -> cpu_schedule_close
 *
 * cpu_schedule.c describes the orders that it makes. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

typedef struct cpu_stream cpu_stream;
typedef struct cpu_schedule cpu_schedule;

/* The functions by which the scheduler looks into a stream's queue. */
typedef struct cpu_queue_view {
    bool (*is_ready)(cpu_stream *s);       /* whether its first task can run now */
    uint64_t (*first_call)(cpu_stream *s); /* number of the first queued call, or CPU_NO_CALL */
} cpu_queue_view;

/* A stream, or the host. One player at a time has the turn. */
typedef struct cpu_player {
    TAILQ_ENTRY(cpu_player) link;
    cpu_stream *stream;         /* NULL: the host */
    const cpu_queue_view *view; /* of stream */
    pthread_cond_t has_turn;
    uint32_t priority;
    uint64_t newest; /* number of its last issued task; one count for all players */
    uint64_t call;   /* number of the call that the player is in; 0: none */
    bool call_over;  /* that call is over, and the player waits for the turn */
} cpu_player;

/* A call is a task, or an act of the host, that waits for other ranks. Calls are numbered from 1.
 * All tasks that wait for the host share CPU_CALL_OF_HOST. */
#define CPU_CALL_OF_HOST (UINT64_MAX - 1)
#define CPU_NO_CALL      UINT64_MAX

/* cpu_schedule_open -- the calling thread's scheduler, for one more device; the first call creates
 * the scheduler from `seed`. The calling thread is the host, and has the turn. NULL: no memory. */
cpu_schedule *cpu_schedule_open(uint64_t seed);
/* cpu_schedule_close -- after all streams of the device are gone. NULL is accepted. */
void cpu_schedule_close(cpu_schedule *x);
/* cpu_player_add -- add stream s, which has no task yet. cpu_player_remove -- remove a stream that
 * has no task left. */
void cpu_player_add(cpu_schedule *x, cpu_player *p, cpu_stream *s, const cpu_queue_view *view);
void cpu_player_remove(cpu_schedule *x, cpu_player *p);

/* cpu_schedule_take -- sleep until p has the turn. cpu_schedule_give -- pass on the turn after a
 * task. */
void cpu_schedule_take(cpu_schedule *x, cpu_player *p);
void cpu_schedule_give(cpu_schedule *x);
/* cpu_schedule_call_begin -- p has the turn and begins a call: give the turn to the next player,
 * perhaps p itself. cpu_schedule_call_end -- sleep until p has the turn again. */
void cpu_schedule_call_begin(cpu_schedule *x, cpu_player *p, uint64_t call);
void cpu_schedule_call_end(cpu_schedule *x, cpu_player *p);

/* cpu_schedule_issued -- the host has issued a task on p's stream: choose who is next. */
void cpu_schedule_issued(cpu_schedule *x, cpu_player *p);
/* cpu_schedule_wait -- the host sleeps until over(self) is true and the host has the turn. */
void cpu_schedule_wait(cpu_schedule *x, bool (*over)(void *self), void *self);
/* cpu_schedule_polled -- the host polled for something that has not happened: pass the turn to
 * another player, if one can run. */
void cpu_schedule_polled(cpu_schedule *x);
/* cpu_schedule_number_call -- the number of a task that waits for other ranks, at its issue. */
uint64_t cpu_schedule_number_call(cpu_schedule *x);
