/* sim_lib.h -- what the tests of the stand-ins for CUDA and CANN share: cases that run in processes
 * of their own, since a stand-in ends the process that it finds a mistake in. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* sim_need -- a SKIP, with exit status 77, unless FSDP_DEVICE is this stand-in. */
void sim_need(const char *wanted);
/* sim_function -- of the stand-in, which is opened, not linked; a missing one ends the program.
 * SIM: to call one that its header declares. */
void *sim_function(const char *name);
#define SIM(name) ((__typeof__(name) *)sim_function(#name))
/* sim_must -- in the process of a case: end it, and say what is not as it should be. */
void sim_must(bool ok, const char *what);

typedef struct sim_case {
    const char *name;
    void (*run)(void);
    const char *says;    /* in what the processes write; NULL: they write nothing */
    bool goes_on;        /* all end well; else one at least is ended by the stand-in */
    int least, most;     /* processes; 0: one */
    const char *setting; /* variables of the environment: "NAME=value NAME=value" */
} sim_case;

/* One that ends well and writes nothing, and one that the stand-in ends with these words. */
#define WELL(test)               .name = #test, .run = test, .goes_on = true
#define ENDS(title, test, words) .name = title, .run = test, .says = words

/* sim_process -- runs a case as rank of n, in a process of its own, and returns. sim_run_alone: one
 * that needs nothing else. */
typedef void sim_process(const sim_case *c, int rank, int n);
sim_process sim_run_alone;
/* sim_case_holds -- run it in n processes and print PASS or FAIL. `before` is called first, in the
 * caller's process, unless it is NULL. An alarm ends who hangs. */
bool sim_case_holds(const sim_case *c, int n, sim_process *process, void (*before)(void));
/* sim_cases_run -- all of them; the program's exit status. */
int sim_cases_run(const sim_case *cases, size_t n_cases, sim_process *process,
                  void (*before)(void));
