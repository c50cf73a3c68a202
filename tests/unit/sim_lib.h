/* sim_lib.h -- what the tests of the stand-ins for CUDA and CANN share. Each case runs in its own
 * process, because a stand-in ends a process in which it finds a mistake. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* sim_need -- skips the program (exit status 77) unless FSDP_DEVICE is this stand-in. */
void sim_need(const char *wanted);
/* sim_function -- a function of the stand-in, which is opened, not linked; if it is missing, the
 * program ends. SIM: to call a function that the stand-in's header declares. */
void *sim_function(const char *name);
#define SIM(name) ((__typeof__(name) *)sim_function(#name))
/* sim_must -- in the process of a case: if not ok, prints what is wrong and ends the process. */
void sim_must(bool ok, const char *what);

typedef struct sim_case {
    const char *name;
    void (*run)(void);
    const char *says;    /* words in the output of the processes; NULL: no output */
    bool goes_on;        /* all processes end well; else the stand-in ends at least one */
    int least, most;     /* number of processes; 0: one */
    const char *setting; /* variables of the environment: "NAME=value NAME=value" */
} sim_case;

/* A case that ends well and writes nothing, and a case that the stand-in ends with these words. */
#define WELL(test)               .name = #test, .run = test, .goes_on = true
#define ENDS(title, test, words) .name = title, .run = test, .says = words

/* sim_process -- runs a case as `rank` of n, in its own process, and returns. sim_run_alone: for a
 * case that needs nothing else. */
typedef void sim_process(const sim_case *c, int rank, int n);
sim_process sim_run_alone;
/* sim_case_holds -- runs the case in n processes and prints PASS or FAIL. `before` (NULL: none) is
 * called first, in the caller's process. An alarm ends processes that hang. */
bool sim_case_holds(const sim_case *c, int n, sim_process *process, void (*before)(void));

/* SIM_WELL, SIM_ENDS -- a case that registers itself before main; fields of sim_case may follow.
 * sim_case_add: adds a case. sim_cases_run: runs all cases in the order of the source; returns the
 * program's exit status. */
#define SIM_WELL(test, ...) SIM_CASE(test, .name = #test, .goes_on = true, ##__VA_ARGS__)
#define SIM_ENDS(test, title, words, ...)                                                          \
    SIM_CASE(test, .name = title, .says = words, ##__VA_ARGS__)
#define SIM_CASE(test, ...)                                                                        \
    static void test(void);                                                                        \
    __attribute__((constructor)) static void add_##test(void)                                      \
    {                                                                                              \
        sim_case_add(&(sim_case){.run = test, __VA_ARGS__});                                       \
    }                                                                                              \
    static void test(void)
void sim_case_add(const sim_case *c);
int sim_cases_run(sim_process *process, void (*before)(void));
