/* file_calls.c -- counts a program's system calls that touch files, and makes one of them fail.
 *
 *   file_calls LOG ROOT RANK ACTION N PROGRAM ARGUMENT...
 *
 *   ROOT    counts only calls on files below this path; "/": calls on any file and calls that ask
 *           for memory or a thread, after the program's libraries are loaded
 *   RANK    counts only calls of that rank of fsdp_run; "-": of all ranks
 *   ACTION  what happens to call N, counted from 1: fail, nospace or eintr; short: half the bytes
 *           are transferred; kill: the process is killed before the call. fail+, nospace+: call N
 *           and all later calls. record: no fault; LOG is written for power_cut
 *
 * The tracer is a grandchild of the traced program, which so keeps its process, its parent and its
 * descriptors. LOG gets a line "injected NAME PATH" if there was a call N, and at the end a line
 * "end CALLS". Where a process may not be traced: exit status 77 and a message.
 *
 * A recorded call that succeeded is a line of LOG, "NAME PATH TO AT BYTES DATA_AT", with "-" for
 * fields that the call does not have. It wrote BYTES at AT in PATH; they are in LOG.data from
 * DATA_AT on. A line that the trainer prints after a step is "say - - 0 0 0". fsdp_run passes the
 * line on some calls later; this is not recorded. Several runs may be recorded in one LOG, one
 * after the other. */
#include <stdio.h>
#if defined __x86_64__
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PATH = 1024, MAX_THREADS = 256, SKIPPED = 77, LOADER_BYTES = 0x40000 };

/* ---- the calls ------------------------------------------------------------------------------- */

/* Where a call has its path: first, after a directory, in both arguments, or as a descriptor. */
typedef enum place { PATH, AT, TWO_PATHS, FD, FD_4, NOWHERE } place;

static const struct call {
    long number;
    const char *name;
    place place;
    int error; /* for action fail */
    bool changes;
} calls[] = {
    {SYS_openat, "openat", AT, EIO, true},
    {SYS_close, "close", FD, EIO, false},
    {SYS_read, "read", FD, EIO, false},
    {SYS_pread64, "pread64", FD, EIO, false},
    {SYS_write, "write", FD, EIO, true},
    {SYS_pwrite64, "pwrite64", FD, EIO, true},
    {SYS_fsync, "fsync", FD, EIO, true},
    {SYS_ftruncate, "ftruncate", FD, EIO, true},
    {SYS_fcntl, "fcntl", FD, EIO, false},
    {SYS_lseek, "lseek", FD, EIO, false},
    {SYS_getdents64, "getdents64", FD, EIO, false},
    {SYS_fstat, "fstat", FD, EIO, false},
    {SYS_newfstatat, "newfstatat", AT, EIO, false},
    {SYS_access, "access", PATH, EACCES, false},
    {SYS_readlink, "readlink", PATH, EIO, false},
    {SYS_rename, "rename", TWO_PATHS, EIO, true},
    {SYS_mkdir, "mkdir", PATH, EIO, true},
    {SYS_rmdir, "rmdir", PATH, EIO, true},
    {SYS_unlink, "unlink", PATH, EIO, true},
    {SYS_unlinkat, "unlinkat", AT, EIO, true},
    {SYS_mmap, "mmap", FD_4, ENOMEM, false},
    {SYS_getcwd, "getcwd", NOWHERE, ENOENT, false},
    {SYS_getrandom, "getrandom", NOWHERE, EAGAIN, false},
    {SYS_memfd_create, "memfd_create", NOWHERE, EMFILE, false},
    {SYS_clone3, "clone3", NOWHERE, EAGAIN, false},
};
enum { N_CALLS = sizeof calls / sizeof *calls };

static const struct call *call_of(unsigned long long number)
{
    for (int i = 0; i < N_CALLS; i++)
        if ((unsigned long long)calls[i].number == number)
            return &calls[i];
    return NULL;
}

/* ---- the fault ------------------------------------------------------------------------------- */

typedef enum action { FAIL, NOSPACE, EINTR_ONCE, SHORT, KILL, RECORD } action;

static struct job {
    const char *root;
    action action;
    long n, seen;
    bool on; /* call n and all later calls */
    pid_t program;
    unsigned long loader; /* address of the dynamic linker while it loads; then 0 */
    FILE *log, *data;
} job;

/* A recorded call that has begun and not ended. */
typedef struct pending {
    pid_t tid; /* 0: free */
    const struct call *call;
    char path[MAX_PATH], to[MAX_PATH];
    uint64_t at, buffer;
    int flags;
} pending;
static pending all_pending[MAX_THREADS];

static bool parse_action(const char *word)
{
    static const char *const words[] = {"fail", "nospace", "eintr", "short", "kill", "record"};
    size_t n = strlen(word);
    job.on = n > 1 && word[n - 1] == '+';
    for (int i = 0; i <= RECORD; i++)
        if (strlen(words[i]) == n - job.on && strncmp(words[i], word, n - job.on) == 0) {
            job.action = (action)i;
            return true;
        }
    return false;
}

/* ---- looking into the program ---------------------------------------------------------------- */

static void read_link(pid_t tid, const char *what, int fd, char out[MAX_PATH])
{
    char link[64];
    if (fd >= 0)
        snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)tid, fd);
    else
        snprintf(link, sizeof link, "/proc/%d/%s", (int)tid, what);
    ssize_t n = readlink(link, out, MAX_PATH - 1);
    out[n > 0 ? n : 0] = '\0';
}

static void read_text(pid_t tid, unsigned long long from, char out[MAX_PATH])
{
    struct iovec mine = {out, MAX_PATH - 1}, theirs = {(void *)(uintptr_t)from, MAX_PATH - 1};
    ssize_t n = process_vm_readv(tid, &mine, 1, &theirs, 1, 0);
    if (n < 0) { /* the text ends near the end of its page */
        theirs.iov_len = 4096 - from % 4096;
        n = process_vm_readv(tid, &mine, 1, &theirs, 1, 0);
    }
    out[n > 0 ? n : 0] = '\0';
}

/* The absolute path that a call names by a directory's descriptor and a text. */
static void read_path(pid_t tid, long long dir, unsigned long long text, char out[MAX_PATH])
{
    char name[MAX_PATH], base[MAX_PATH];
    read_text(tid, text, name);
    if (*name == '/') {
        snprintf(out, MAX_PATH, "%s", name);
        return;
    }
    read_link(tid, "cwd", (int)dir == AT_FDCWD ? -1 : (int)dir, base);
    snprintf(out, MAX_PATH, "%.*s%s%.*s", MAX_PATH / 2, base, *name ? "/" : "", MAX_PATH / 2 - 2,
             name);
}

static void read_paths(pid_t tid, const struct user_regs_struct *r, pending *p)
{
    place at = p->call->place;
    int fd = at == FD ? (int)r->rdi : at == FD_4 ? (int)r->r8 : -1;
    p->to[0] = p->path[0] = '\0';
    if (at == PATH || at == TWO_PATHS)
        read_path(tid, AT_FDCWD, r->rdi, p->path);
    if (at == TWO_PATHS)
        read_path(tid, AT_FDCWD, r->rsi, p->to);
    if (at == AT)
        read_path(tid, (long long)r->rdi, r->rsi, p->path);
    if (fd >= 0)
        read_link(tid, "", fd, p->path);
}

static unsigned long loader_of(pid_t pid)
{
    char path[64];
    unsigned long pair[2] = {0}, base = 0;
    snprintf(path, sizeof path, "/proc/%d/auxv", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && base == 0 && fread(pair, sizeof pair, 1, f) == 1)
        base = pair[0] == 7 /* AT_BASE */ ? pair[1] : 0;
    if (f)
        fclose(f);
    return base;
}

static uint64_t position(pid_t tid, int fd)
{
    char path[64];
    unsigned long long at = 0;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", (int)tid, fd);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "pos: %llu", &at) != 1)
        at = 0;
    if (f)
        fclose(f);
    return at;
}

/* ---- recording ------------------------------------------------------------------------------- */

static pending *pending_of(pid_t tid)
{
    for (int i = 0; i < MAX_THREADS; i++)
        if (all_pending[i].tid == tid)
            return &all_pending[i];
    fprintf(stderr, "file_calls: more than %d threads\n", MAX_THREADS);
    exit(1);
}

static void begin_record(const struct user_regs_struct *r, pending *p)
{
    bool positioned = p->call->number == SYS_pwrite64;
    p->at = positioned ? r->r10 : p->call->place == FD ? position(p->tid, (int)r->rdi) : 0;
    p->buffer = r->rsi;
    p->flags = (int)r->rdx;
    if (p->call->number == SYS_ftruncate)
        p->at = r->rsi;
}

static void save_data(const pending *p, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    struct iovec mine = {copy, bytes}, theirs = {(void *)(uintptr_t)p->buffer, bytes};
    if (!copy || process_vm_readv(p->tid, &mine, 1, &theirs, 1, 0) != (ssize_t)bytes ||
        fwrite(copy, 1, bytes, job.data) != bytes || fflush(job.data) != 0)
        fprintf(job.log, "unknown the data of %s\n", p->path);
    free(copy);
}

static void end_record(pending *p, long long result)
{
    bool opens = p->call->number == SYS_openat;
    bool writes = p->call->number == SYS_write || p->call->number == SYS_pwrite64;
    if (result < 0 || (opens && !(p->flags & (O_CREAT | O_TRUNC))))
        return;
    fprintf(job.log, "%s %s %s %" PRIu64 " %lld %ld\n",
            opens && (p->flags & O_TRUNC) ? "truncating" : p->call->name, p->path,
            *p->to ? p->to : "-", p->at, writes ? result : 0, ftell(job.data));
    if (writes)
        save_data(p, (size_t)result);
}

/* ---- at each call ---------------------------------------------------------------------------- */

static bool is_below(const char *path)
{
    size_t n = strlen(job.root);
    return strncmp(path, job.root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* Whether the call counts. Calls on stderr do not, because a test reads what the program says. */
static bool counts(const struct user_regs_struct *r, const pending *p)
{
    if (strcmp(job.root, "/") != 0)
        return is_below(p->path) || is_below(p->to);
    if (job.loader != 0 && r->rip - job.loader < LOADER_BYTES)
        return false;
    job.loader = 0;
    return p->call->place != FD || (int)r->rdi != STDERR_FILENO;
}

static void fail_call(pid_t tid, struct user_regs_struct *r, int error)
{
    r->orig_rax = (unsigned long long)-1; /* no call is made; this is its result */
    r->rax = (unsigned long long)-error;
    ptrace(PTRACE_SETREGS, tid, NULL, r);
}

static void inject(pid_t tid, struct user_regs_struct *r, const pending *p)
{
    if (job.seen == job.n)
        fprintf(job.log, "injected %s %s\n", p->call->name, *p->to ? p->to : p->path);
    if (job.action == KILL) {
        kill(job.program, SIGKILL);
    } else if (job.action == SHORT) {
        bool moves = p->call->number == SYS_read || p->call->number == SYS_pread64 ||
                     p->call->number == SYS_write || p->call->number == SYS_pwrite64;
        r->rdx = moves && r->rdx > 1 ? r->rdx / 2 : r->rdx;
        ptrace(PTRACE_SETREGS, tid, NULL, r);
    } else {
        fail_call(tid, r,
                  job.action == NOSPACE      ? ENOSPC
                  : job.action == EINTR_ONCE ? EINTR
                                             : p->call->error);
    }
}

/* Returns how the thread continues: to the end of this call, or to the next one. */
static int on_call(pid_t tid)
{
    struct user_regs_struct r;
    char text[MAX_PATH];
    pending now = {.tid = tid};
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r) != 0 || !(now.call = call_of(r.orig_rax)))
        return PTRACE_CONT;
    if (job.action == RECORD && now.call->number == SYS_write && r.rdi == STDOUT_FILENO) {
        char exe[MAX_PATH];
        read_text(tid, r.rsi, text);
        read_link(tid, "exe", -1, exe);
        if (strncmp(text, "step ", 5) == 0 && !strstr(exe, "/fsdp_run"))
            fprintf(job.log, "say - - 0 0 0\n");
        return PTRACE_CONT;
    }
    read_paths(tid, &r, &now);
    if (!counts(&r, &now))
        return PTRACE_CONT;
    job.seen++;
    if (job.action == RECORD && now.call->changes) {
        begin_record(&r, &now);
        *pending_of(0) = now;
        return PTRACE_SYSCALL;
    }
    if (job.action != RECORD && (job.seen == job.n || (job.on && job.seen > job.n)))
        inject(tid, &r, &now);
    return PTRACE_CONT;
}

static void on_return(pid_t tid)
{
    struct user_regs_struct r;
    pending *p = pending_of(tid);
    if (ptrace(PTRACE_GETREGS, tid, NULL, &r) == 0)
        end_record(p, (long long)r.rax);
    p->tid = 0;
}

/* ---- tracing --------------------------------------------------------------------------------- */

static void go_on(pid_t tid, int how, int signo)
{
    ptrace((enum __ptrace_request)how, tid, NULL, (void *)(intptr_t)signo);
}

static void on_stop(pid_t tid, int status)
{
    int signo = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_SECCOMP) {
        go_on(tid, on_call(tid), 0);
    } else if (signo == (SIGTRAP | 0x80)) {
        on_return(tid);
        go_on(tid, PTRACE_CONT, 0);
    } else if (event == PTRACE_EVENT_EXEC) {
        job.loader = loader_of(tid);
        go_on(tid, PTRACE_CONT, 0);
    } else {
        go_on(tid, PTRACE_CONT, event == 0 ? signo : 0);
    }
}

static void trace(void)
{
    int status;
    for (pid_t tid; (tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR;)
        if (tid > 0 && WIFSTOPPED(status))
            on_stop(tid, status);
    fprintf(job.log, "end %ld\n", job.seen);
}

static bool stop_at_calls(void)
{
    struct sock_filter code[N_CALLS + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < N_CALLS; i++)
        code[i + 1] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number, (unsigned char)(N_CALLS - i), 0);
    code[N_CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[N_CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog filter = {N_CALLS + 3, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* The tracer leaves the program's terminal, group and outputs; the outputs would stay open. */
static _Noreturn void become_tracer(int ready, const char *log)
{
    char name[MAX_PATH];
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL |
                   PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACEEXEC;
    setsid();
    snprintf(name, sizeof name, "%s.data", log);
    job.log = fopen(log, "ae");
    job.data = fopen(name, "ae");
    if (!job.log || !job.data || fseek(job.data, 0, SEEK_END) != 0)
        _exit(1);
    setvbuf(job.log, NULL, _IOLBF, 0);
    if (ptrace(PTRACE_SEIZE, job.program, NULL, (void *)options) != 0)
        _exit(SKIPPED);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        dup2(open("/dev/null", O_RDWR | O_CLOEXEC), fd);
    close(ready);
    trace();
    fclose(job.log);
    fclose(job.data);
    _exit(0);
}

static bool start_tracer(const char *log)
{
    int ready[2], status;
    char byte;
    job.program = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (pipe2(ready, O_CLOEXEC) != 0)
        return false;
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0)
            become_tracer(ready[1], log);
        _exit(0);
    }
    close(ready[1]);
    bool ok =
        between > 0 && waitpid(between, &status, 0) == between && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return ok;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("FSDP_RUN");
    if (argc < 7 || !parse_action(argv[4])) {
        fprintf(stderr, "usage: file_calls LOG ROOT RANK fail|nospace|eintr|short|kill|record N "
                        "PROGRAM ...\n");
        return 2;
    }
    job.root = argv[2];
    job.n = atol(argv[5]);
    if (strcmp(argv[3], "-") == 0 || (rank && atoi(rank) == atoi(argv[3]))) {
        if (!start_tracer(argv[1]) || !stop_at_calls()) {
            fprintf(stderr, "file_calls: no process may be traced here\n");
            return SKIPPED;
        }
    }
    execvp(argv[6], argv + 6);
    perror(argv[6]);
    return 127;
}

#else
int main(void)
{
    fprintf(stderr, "file_calls: knows the system calls of x86-64 only\n");
    return 77;
}
#endif
