/* sim_lib.c -- see sim_lib.h. */
#include "tests/unit/sim_lib.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/target_lib.h"

enum { ALARM_S = 600, TEXT_BYTES = 16384, MOST = 4, MOST_CASES = 64 };

void sim_need(const char *wanted)
{
    const char *name = getenv("FSDP_DEVICE");
    if (name != NULL && strcmp(name, wanted) == 0)
        return;
    printf("SKIP FSDP_DEVICE is not %s\n", wanted);
    exit(77);
}

void *sim_function(const char *name)
{
    void *symbol = target_symbol(name);
    if (symbol == NULL) {
        fprintf(stderr, "the stand-in has no %s\n", name);
        exit(2);
    }
    return symbol;
}

void sim_must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "not as it should be: %s\n", what);
    _exit(3);
}

static void set_variables(const char *setting)
{
    char text[256];
    snprintf(text, sizeof text, "%s", setting != NULL ? setting : "");
    for (char *name = strtok(text, " "); name != NULL; name = strtok(NULL, " ")) {
        char *value = strchr(name, '=');
        *value = '\0';
        setenv(name, value + 1, 1);
    }
}

static void child_run(const sim_case *c, int rank, int n, sim_process *process)
{
    alarm(ALARM_S);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    set_variables(c->setting);
    process(c, rank, n);
    exit(0);
}

/* Reads fd until all processes have closed it; with until_hint, only until a stand-in prints a
 * HINT. */
static void read_all(int fd, bool until_hint, char text[TEXT_BYTES])
{
    size_t n = 0;
    ssize_t got;
    text[0] = '\0';
    while (n < TEXT_BYTES - 1 && (got = read(fd, text + n, TEXT_BYTES - 1 - n)) > 0) {
        text[n += (size_t)got] = '\0';
        if (until_hint && strstr(text, "HINT") != NULL)
            break;
    }
    close(fd);
}

/* Runs all processes. If the stand-in ends one, the others might wait for it for ever: they are
 * killed. */
static void all_run(const sim_case *c, int n, sim_process *process, int status[MOST],
                    char text[TEXT_BYTES])
{
    const bool kills = n > 1 && !c->goes_on;
    int ends[2];
    pid_t pid[MOST];
    sim_must(pipe(ends) == 0, "a pipe");
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        if (pid[r] != 0)
            continue;
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        child_run(c, r, n, process);
    }
    close(ends[1]);
    read_all(ends[0], kills, text);
    usleep(kills ? 200000 : 0);
    for (int r = 0; r < n; r++) {
        if (kills)
            kill(pid[r], SIGKILL);
        waitpid(pid[r], &status[r], 0);
    }
}

void sim_run_alone(const sim_case *c, int rank, int n)
{
    (void)rank, (void)n;
    c->run();
    _exit(0);
}

bool sim_case_holds(const sim_case *c, int n, sim_process *process, void (*before)(void))
{
    static char text[TEXT_BYTES];
    int status[MOST], n_well = 0, n_aborted = 0;
    if (before != NULL)
        before();
    all_run(c, n, process, status, text);
    for (int r = 0; r < n; r++) {
        n_well += WIFEXITED(status[r]) && WEXITSTATUS(status[r]) == 0;
        n_aborted += WIFSIGNALED(status[r]) && WTERMSIG(status[r]) == SIGABRT;
    }
    const bool ended = c->goes_on ? n_well == n : n > 1 ? n_well < n : n_aborted == 1;
    const bool said = c->says == NULL ? text[0] == '\0' : strstr(text, c->says) != NULL;
    printf("%s %s on %d processes\n", said && ended ? "PASS" : "FAIL", c->name, n);
    if (!said || !ended)
        printf("    %d ended well, %d by abort, and wrote:\n%s\n", n_well, n_aborted, text);
    return said && ended;
}

static sim_case cases[MOST_CASES];
static int n_cases;

void sim_case_add(const sim_case *c)
{
    sim_must(n_cases < MOST_CASES, "room for the case");
    cases[n_cases++] = *c;
}

int sim_cases_run(sim_process *process, void (*before)(void))
{
    int n_failed = 0;
    for (const sim_case *c = cases; c < cases + n_cases; c++)
        for (int n = c->least > 0 ? c->least : 1; n <= (c->most > 0 ? c->most : 1); n++)
            n_failed += !sim_case_holds(c, n, process, before);
    return n_failed > 0;
}
