/* confine.c -- take rights from a command, for confine.sh, which explains when.
 *
 *   confine --filter                        write the filter of system calls, for bwrap --seccomp
 *   confine [--only] [PATH ...] -- COMMAND  filter the command's system calls; --only: it also sees
 *                                           only the PATHs (Landlock), and writes only to the first
 *   confine --alone -- COMMAND              it can start threads, but no process, and send signals
 *                                           only to itself
 *
 * Exit status: the command's; 125: the kernel or a library lacks what this needs. */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CANNOT = 125 };

/* What no test needs: other views of the file system, other processes' memory, and calls that have
 * often been ways into the kernel. */
static const char *const DENIED[] = {
    "mount",
    "umount2",
    "pivot_root",
    "move_mount",
    "fsopen",
    "fsmount",
    "open_tree",
    "mount_setattr",
    "chroot",
    "unshare",
    "setns",
    "ptrace",
    "bpf",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "io_uring_setup",
    "kcmp",
    "io_uring_register",
    "io_uring_enter",
    "userfaultfd",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "open_by_handle_at",
    "process_madvise",
};

static int failed(const char *what)
{
    fprintf(stderr, "confine: %s: %s\n", what, strerror(errno));
    return CANNOT;
}

/* What a rank does not do: start a process, leave the group that the grader ends, disturb another
 * process (only_itself has the calls that can also mean itself), leave memory behind, change a file
 * by its path, which Landlock does not see. */
static const char *const PROCESSES[] = {
    "fork",
    "vfork",
    "setsid",
    "setpgid",
    "tkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_send_signal",
    "setpriority",
    "ioprio_set",
    "shmget",
    "semget",
    "msgget",
    "mq_open",
    "truncate",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
    "file_setattr",
};

static int only_itself(scmp_filter_ctx f)
{
    const struct scmp_arg_cmp others = SCMP_A0(SCMP_CMP_NE, (scmp_datum_t)getpid());
    const struct scmp_arg_cmp not_0 = SCMP_A0(SCMP_CMP_NE, 0);
    const struct {
        int call;
        struct scmp_arg_cmp as;
    } denied[] = {/* the kernel takes 32 bits of a command */
                  {SCMP_SYS(kill), others},
                  {SCMP_SYS(tgkill), others},
                  {SCMP_SYS(prlimit64), not_0},
                  {SCMP_SYS(sched_setaffinity), not_0},
                  {SCMP_SYS(sched_setscheduler), not_0},
                  {SCMP_SYS(sched_setparam), not_0},
                  {SCMP_SYS(sched_setattr), not_0},
                  {SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, F_SETOWN)},
                  {SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, F_SETOWN_EX)},
                  {SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, FIOSETOWN)},
                  {SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, SIOCSPGRP)}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof denied / sizeof *denied; i++)
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), denied[i].call, 1, denied[i].as);
    return rc;
}

/* Deny these calls, the network, and clone if its `flags` are as in `clone_as`. NULL: errno says
 * why. */
static scmp_filter_ctx make_filter(const char *const *denied, size_t n_denied, uint64_t flags,
                                   uint64_t clone_as)
{
    const uint32_t refuse = SCMP_ACT_ERRNO(EPERM);
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
    int rc = f == NULL ? -ENOMEM : 0;
    for (size_t i = 0; rc == 0 && i < n_denied; i++) {
        const int call = seccomp_syscall_resolve_name(denied[i]);
        if (call != __NR_SCMP_ERROR) /* else this library is older than the call */
            rc = seccomp_rule_add(f, refuse, call, 0);
    }
    if (rc == 0) /* no network: sockets between processes of one host only */
        rc = seccomp_rule_add(f, refuse, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    if (rc == 0)
        rc = seccomp_rule_add(f, refuse, SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, flags, clone_as));
    if (rc == 0) /* its flags are in memory; a libc then calls clone */
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    errno = -rc;
    return rc == 0 ? f : NULL;
}

/* ---- Landlock: only some paths ------------------------------------------------------------- */

/* All access rights of the first version of Landlock, and the rights to read. */
static const uint64_t ALL = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
static const uint64_t READ =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
static const uint64_t OF_FILES =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE;

static bool allow(int rules, const char *path, uint64_t rights)
{
    struct stat st;
    struct landlock_path_beneath_attr rule = {.parent_fd = open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent_fd < 0 && errno == ENOENT)
        return true;
    if (rule.parent_fd < 0 || fstat(rule.parent_fd, &st) != 0)
        return false;
    rule.allowed_access = S_ISDIR(st.st_mode) ? rights : rights & OF_FILES;
    const long rc = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0u);
    close(rule.parent_fd);
    return rc == 0;
}

static bool see_only(char **paths, int n)
{
    const struct landlock_ruleset_attr attr = {.handled_access_fs = ALL};
    const int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0u);
    bool good = rules >= 0;
    for (int i = 0; good && i < n; i++)
        good = allow(rules, paths[i], i == 0 ? ALL : READ);
    good = good && allow(rules, "/dev/null", READ | LANDLOCK_ACCESS_FS_WRITE_FILE);
    good = good && allow(rules, "/proc", READ);
    return good && syscall(SYS_landlock_restrict_self, rules, 0u) == 0;
}

int main(int argc, char **argv)
{
    const bool only = argc > 1 && strcmp(argv[1], "--only") == 0;
    const bool alone = argc > 1 && strcmp(argv[1], "--alone") == 0;
    scmp_filter_ctx filter =
        alone ? make_filter(PROCESSES, sizeof PROCESSES / sizeof *PROCESSES, CLONE_THREAD, 0)
              : make_filter(DENIED, sizeof DENIED / sizeof *DENIED, CLONE_NEWUSER, CLONE_NEWUSER);
    if (filter == NULL || (alone && (errno = -only_itself(filter)) != 0))
        return failed("filter of system calls");
    if (argc == 2 && strcmp(argv[1], "--filter") == 0)
        return seccomp_export_bpf(filter, STDOUT_FILENO) == 0 ? 0 : failed("filter");
    int n = 1 + (only || alone);
    while (n < argc && strcmp(argv[n], "--") != 0)
        n++;
    if (n + 1 >= argc)
        return failed("usage: confine [--only] [PATH ...] -- COMMAND");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return failed("no_new_privs");
    if (only && !see_only(argv + 2, n - 2))
        return failed("Landlock");
    if (seccomp_load(filter) != 0)
        return failed("seccomp");
    execvp(argv[n + 1], argv + n + 1);
    return failed(argv[n + 1]);
}
