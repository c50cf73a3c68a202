/* virtual_time_impl.h -- what the files of the simulator share.
 *
 *   virtual_time.c         loads and checks the input, reports a deadlock
 *   virtual_time_sim.c     events, agents, collectives
 *   virtual_time_totals.c  what the items of a step add up to */
#pragma once
#include "common/observe/virtual_time.h"

typedef enum agent_state {
    AT_REST, /* a stream that has nothing to do; a host that has issued all */
    ISSUING, /* a host, until its event */
    DOING,   /* its item ends at its event */
    CALLING, /* in a collective that has not been given its links */
    BLOCKED  /* until item `until` of the rank is done */
} agent_state;

typedef struct agent {
    agent_state state;
    int rank, stream; /* TIMELINE_HOST: the host */
    int64_t item;     /* the item that it does, or from which it looks for the next one */
    int64_t until;
    int64_t last;     /* stream: the last item issued on it, or TIMELINE_NONE */
    unsigned version; /* of its event: older ones are void */
    double left_s;    /* compute stream: of its WORK at full speed, as of since_s */
    double since_s;
} agent;

/* An item of one rank that belongs to a collective. */
typedef struct member {
    uint64_t group, seq;
    int64_t item;
    int rank;
    bool has_come;
} member;

typedef struct collective {
    member *members; /* [n_members] sorted by rank */
    int n_members, n_come;
    double ready_s;
} collective;

typedef enum event_kind { EVENT_AGENT, EVENT_MOVE_BEGINS, EVENT_MOVE_ENDS, EVENT_READY } event_kind;

typedef struct event_entry {
    double at_s;
    event_kind kind;
    uint64_t key1, key2; /* break ties: agent; rank; group and seq */
    size_t what;         /* index of the agent, rank or collective */
    unsigned version;
} event_entry;

typedef struct rank_state {
    agent *agents; /* [1 + n_streams] */
    timeline_item *items;
    double *moved_s;
    bool *done;    /* [n_items] */
    int64_t *call; /* [n_items] index of the item's collective */
    int64_t n_items;
    int n_streams, compute;
    int n_moving;       /* collectives of the rank under way; counted only if they steal */
    double link_free_s; /* from when on its link is free */
    double host_free_s; /* entry h: of host h's link */
} rank_state;

typedef struct sim {
    const virtual_config *config;
    int n_ranks;
    rank_state *ranks; /* [n_ranks] */
    agent *agents;     /* of all ranks */
    size_t n_agents;
    collective *calls;
    size_t n_calls;
    member *members;
    size_t n_members;
    event_entry *heap;
    size_t n_events;
    bool *done;
    int64_t *call;
} sim;

/* item_of -- what a collective is on one of its ranks. */
static inline timeline_item *item_of(const sim *m, const member *at)
{
    return &m->ranks[at->rank].items[at->item];
}

/* virtual_sim_run -- run a loaded simulation until nothing can go on. */
void virtual_sim_run(sim *m);
/* virtual_compute_stream -- the index of a view's compute stream; TIMELINE_NONE: it has none. */
int virtual_compute_stream(const timeline_view *view, const virtual_config *config);
/* virtual_totals_fill -- allocate and fill result->totals from result->views.
 *   errors  FSDP_ENOMEM */
fsdp_status virtual_totals_fill(const virtual_config *config, virtual_result *result);
