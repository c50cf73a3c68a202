/* fsdp_run_main.c -- the launcher: build/fsdp_run -n 4 PROGRAM, ranks of one host without MPI.
 *
 * The ranks find each other by memory that the launcher makes (common/comm/transport/shm_file.c).
 * Any program can be started: one that never joins is just run N times. Exit status: that of the
 * first rank that failed, 128 + N when signal N ended it; 2 for wrong usage, 124 after --timeout,
 * 126 and 127 when the program cannot be started. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "common/comm/transport/shm_launch.h"
#include "trainer/tools/rank_set.h"

static const char HELP[] =
    "usage: fsdp_run [-n N] [--no-prefix] [--timeout S] [--] PROGRAM [ARGS...]\n"
    "\n"
    "Starts N ranks of PROGRAM on this host; they share memory and need no MPI.\n"
    "\n"
    "  -n N          ranks, 1 to 256 (default: one for each core)\n"
    "  --no-prefix   print the ranks' lines as they are, without \"[rank] \" before each\n"
    "  --timeout S   end the ranks after S seconds, with exit status 124\n"
    "  --help        print this\n"
    "\n"
    "Signals are passed on to all ranks; a second SIGINT (Ctrl-C) kills them. When a rank fails "
    "the\n"
    "others are ended, and the exit status is that of the first that failed. Rank 0 reads the\n"
    "standard input unless that is a terminal, the others read /dev/null.\n"
    "\n"
    "  build/fsdp_run -n 4 build/fsdp_train --reduction canonical\n";

static int core_count(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores < RUN_MOST_RANKS ? cores : RUN_MOST_RANKS;
}

/* ---- options -------------------------------------------------------------------------------- */

static fsdp_status parse_ranks(const char *text, int *n_ranks)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || n < 1 || n > RUN_MOST_RANKS)
        return fsdp_error(FSDP_EINVAL, "build/fsdp_run -n 4 PROGRAM",
                          "fsdp_run: -n: got '%.40s', expected 1 to %d", text, RUN_MOST_RANKS);
    *n_ranks = (int)n;
    return FSDP_OK;
}

static fsdp_status parse_limit(const char *text, double *limit_s)
{
    char *end;
    *limit_s = strtod(text, &end);
    if (end == text || *end != '\0' || !(*limit_s > 0 && *limit_s < 1e9))
        return fsdp_error(FSDP_EINVAL, "--timeout 60",
                          "fsdp_run: --timeout: got '%.40s', expected seconds above 0", text);
    return FSDP_OK;
}

/* FSDP_HELP: --help. What follows the first word that is no option is the program's. */
static fsdp_status parse(char **argv, run_config *cfg)
{
    char **at = argv + 1;
    for (; *at != NULL && **at == '-' && strcmp(*at, "--") != 0; at++) {
        const char *option = *at;
        bool takes_value = strcmp(option, "-n") == 0 || strcmp(option, "--timeout") == 0;
        if (takes_value && at[1] == NULL)
            return fsdp_error(FSDP_EINVAL, "build/fsdp_run --help", "fsdp_run: %s wants a value",
                              option);
        if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0)
            return FSDP_HELP;
        if (strcmp(option, "-n") == 0)
            TRY(parse_ranks(*++at, &cfg->n_ranks));
        else if (takes_value)
            TRY(parse_limit(*++at, &cfg->limit_s));
        else if (strcmp(option, "--no-prefix") == 0)
            cfg->prefix = false;
        else
            return fsdp_error(FSDP_EINVAL, "build/fsdp_run --help",
                              "fsdp_run: unknown option '%.100s'", option);
    }
    cfg->argv = *at != NULL && strcmp(*at, "--") == 0 ? at + 1 : at;
    if (*cfg->argv == NULL)
        return fsdp_error(FSDP_EINVAL, "build/fsdp_run -n 4 build/fsdp_train --size tiny",
                          "fsdp_run: no program to start");
    return FSDP_OK;
}

/* Ranks of two launchers would count their ranks twice. */
static fsdp_status check_not_nested(void)
{
    static const char *const names[] = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK",
                                        COMM_RUN_ENV};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return fsdp_error(FSDP_EINVAL,
                              "leave fsdp_run out: mpiexec -n 4 build/fsdp_train, or leave the "
                              "other launcher out; unset the variable if there is none",
                              "fsdp_run: started by another launcher, %s is set", names[i]);
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    (void)argc;
    run_config cfg = {.n_ranks = core_count(), .prefix = true};
    rank_set ranks;
    int exit_status = RUN_USAGE;
    fsdp_status status = parse(argv, &cfg);
    if (status == FSDP_HELP)
        return fputs(HELP, stdout) < 0 || fflush(stdout) != 0;
    if (status == FSDP_OK)
        status = check_not_nested();
    if (status == FSDP_OK) {
        status = rank_set_start(&ranks, &cfg);
        exit_status = status == FSDP_OK ? rank_set_wait(&ranks) : ranks.exit_status;
        rank_set_close(&ranks);
    }
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return exit_status;
}
