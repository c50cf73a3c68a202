/* judge.c -- gives verdicts on a learner's functions from outside of their process.
 *
 *   judge --list                                            the tasks that it judges
 *   judge [--seed N] --ranks W --folder DIR --task 1.1 ... -- COMMAND
 *
 * COMMAND starts W workers (worker.c), confined, with DIR as GRADE_JUDGE. They connect to a socket
 * in DIR, which is the only thing that this process shares with them. The judge draws inputs by a
 * seed of its own, after the learner's code was compiled; it sends them, and holds what comes back
 * against the contract or against one device. It calls no function of a lab.
 *
 * Writes "VERDICT 1.1 PASS" or "VERDICT 1.1 FAIL why" to descriptor 3, and ends after the first
 * FAIL. Exit status: 0: every task has a verdict or one failed; 2: no workers. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/grade/judge_models_lib.h"
#include "tests/grade/judge_plain_lib.h"
#include "tests/grade/judge_units_lib.h"
#include "tests/grade/jury_lib.h"

enum { VERDICTS = 3 };

static const struct {
    const char *id;
    fsdp_status (*judge)(void);
} TASKS[] = {
    {"1.1", judge_1_1}, {"1.2", judge_1_2}, {"1.3", judge_1_3}, {"1.4", judge_1_4},
    {"1.5", judge_1_5}, {"2.1", judge_2_1}, {"2.5", judge_2_5}, {"3.2a", judge_3_2a},
    {"3.3", judge_3_3}, {"3.7", judge_3_7}, {"4.1", judge_4_1}, {"4.2", judge_4_2},
    {"4.3", judge_4_3}, {"4.4", judge_4_4}, {"4.5", judge_4_5}, {"4.6", judge_4_6},
    {"5.6", judge_5_6},
};
enum { N_TASKS = sizeof TASKS / sizeof *TASKS };

typedef struct options {
    uint64_t seed;
    int n_ranks;
    const char *folder;
    const char *tasks[N_TASKS];
    int n_tasks;
    char **command;
} options;

static int failed(const char *what, const char *why)
{
    fprintf(stderr, "judge: %s: %s\n", what, why);
    return 2;
}

static int find_task(const char *id)
{
    int i = 0;
    while (i < N_TASKS && strcmp(TASKS[i].id, id) != 0)
        i++;
    return i;
}

static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

static bool read_option(const char *name, const char *value, options *o)
{
    uint64_t n = 0;
    if (strcmp(name, "--seed") == 0)
        return read_number(value, &o->seed);
    if (strcmp(name, "--ranks") == 0) {
        const bool good = read_number(value, &n) && n >= 1 && n <= JURY_MOST_RANKS;
        o->n_ranks = (int)n;
        return good;
    }
    if (strcmp(name, "--folder") == 0)
        o->folder = value;
    else if (strcmp(name, "--task") == 0 && o->n_tasks < N_TASKS && find_task(value) < N_TASKS)
        o->tasks[o->n_tasks++] = value;
    else
        return false;
    return true;
}

/* False: *wrong is the option that cannot be used, or what is missing. */
static bool read_options(int argc, char **argv, options *o, const char **wrong)
{
    *o = (options){0};
    *wrong = "no random numbers";
    if (getrandom(&o->seed, sizeof o->seed, 0) != (ssize_t)sizeof o->seed)
        return false;
    int i = 1;
    for (; i + 1 < argc && strcmp(argv[i], "--") != 0; i += 2)
        if (!read_option(argv[i], argv[i + 1], o)) {
            *wrong = argv[i + 1];
            return false;
        }
    o->command = argv + i + 1;
    *wrong = "--folder, --ranks or COMMAND is missing";
    return o->folder && o->n_ranks > 0 && i + 1 < argc;
}

/* The command's processes hold the write end of a pipe, so that its end shows that all are gone.
 * They do not get the descriptor of the verdicts. */
static int start(const options *o, int *alive)
{
    int ends[2];
    fcntl(VERDICTS, F_SETFD, FD_CLOEXEC);
    if (pipe(ends) != 0)
        return -1;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    setenv("GRADE_JUDGE", o->folder, 1);
    const pid_t child = fork();
    if (child == 0) {
        execvp(o->command[0], o->command);
        _exit(127);
    }
    close(ends[1]);
    *alive = ends[0];
    return child;
}

/* One worker: its socket goes to the place of the rank that it says it is. */
static bool accept_one(int listener, int alive, int n_ranks, int *sockets)
{
    struct pollfd either[] = {{.fd = listener, .events = POLLIN}, {.fd = alive, .events = POLLIN}};
    wire hello = {0};
    while (poll(either, 2, -1) < 0 && errno == EINTR)
        continue;
    const int fd = either[0].revents & POLLIN ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    bool good = fd >= 0 && wire_receive(&hello, fd) == FSDP_OK;
    const size_t rank = good ? wire_get_below(&hello, (size_t)n_ranks) : 0;
    good = good && wire_ended(&hello) == FSDP_OK && sockets[rank] < 0;
    if (good)
        sockets[rank] = fd;
    wire_free(&hello);
    return good;
}

static fsdp_status judge_task(const char *id)
{
    const int number = find_task(id);
    jury_begin_task(number);
    TRY(TASKS[number].judge());
    return jury_end_task();
}

static void judge_all(const options *o)
{
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < o->n_tasks && status == FSDP_OK; i++) {
        status = judge_task(o->tasks[i]);
        if (status == FSDP_OK)
            dprintf(VERDICTS, "VERDICT %s PASS\n", o->tasks[i]);
        else
            dprintf(VERDICTS, "VERDICT %s FAIL the judge, seed %#llx: %s\n", o->tasks[i],
                    (unsigned long long)o->seed, fsdp_error_get()->what);
    }
}

int main(int argc, char **argv)
{
    options o;
    int sockets[JURY_MOST_RANKS], alive = -1;
    struct sockaddr_un at;
    for (int i = 0; argc == 2 && strcmp(argv[1], "--list") == 0 && i < N_TASKS; i++)
        puts(TASKS[i].id);
    if (argc == 2)
        return 0;
    const char *wrong;
    if (!read_options(argc, argv, &o, &wrong)) {
        fprintf(stderr,
                "judge: got \"%s\"; usage: judge [--seed N] --ranks W --folder DIR --task ID "
                "... -- COMMAND\nHINT: W is 1 to %d, N a number; judge --list names the tasks\n",
                wrong, JURY_MOST_RANKS);
        return 2;
    }
    const int folder = wire_address(o.folder, &at);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (folder < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(listener, JURY_MOST_RANKS) != 0)
        return failed(o.folder, strerror(errno));
    const pid_t child = start(&o, &alive);
    bool good = child > 0;
    memset(sockets, -1, sizeof sockets);
    for (int r = 0; r < o.n_ranks && good; r++)
        good = accept_one(listener, alive, o.n_ranks, sockets);
    if (good) {
        jury_open(sockets, o.n_ranks, o.seed);
        judge_all(&o);
    }
    for (int r = 0; r < o.n_ranks; r++)
        if (sockets[r] >= 0)
            close(sockets[r]);
    close(listener);
    waitpid(child, NULL, 0);
    return good ? 0 : failed(*o.command, "its workers did not connect");
}
