/* hold_calls.c -- delays a program when it syncs or removes a file. It is loaded in front of the
 * program:
 *
 *   LD_PRELOAD=hold_calls.so HOLD=CALL:WHERE,RANK,FIRST/EVERY,HOW program ...
 *
 *   CALL   fsync or unlinkat
 *   WHERE  a part of the file's path, or the name of the calling thread
 *   RANK   only this rank of fsdp_run; "-": all. A program without a launcher has every rank
 *   FIRST  the first of these calls that is held, from 0; then every EVERY-th; 0: no other
 *   HOW    seconds; "stop": SIGSTOP; the path of a file: as long as the file exists */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_rank(const char *wanted)
{
    const char *rank = getenv("FSDP_RUN");
    return !rank || *wanted == '-' || atoi(rank) == atoi(wanted);
}

static void hold(const char *call, const char *path)
{
    static atomic_int n_calls;
    char at[16], where[64], rank[8], how[4096], thread[16] = "";
    int first, every;
    const char *text = getenv("HOLD");
    if (!text || sscanf(text, "%15[^:]:%63[^,],%7[^,],%d/%d,%4095s", at, where, rank, &first,
                        &every, how) != 6)
        return;
    prctl(PR_GET_NAME, thread);
    if (strcmp(at, call) != 0 || !is_rank(rank) ||
        !(strstr(path, where) || strcmp(thread, where) == 0))
        return;
    int n = atomic_fetch_add(&n_calls, 1) - first;
    if (n < 0 || (every > 0 ? n % every : n) != 0)
        return;
    if (strcmp(how, "stop") == 0)
        raise(SIGSTOP);
    else if (*how != '/')
        sleep((unsigned)atoi(how));
    while (*how == '/' && access(how, F_OK) == 0)
        usleep(1000);
}

int unlinkat(int dir, const char *name, int flags)
{
    hold("unlinkat", name);
    return (int)syscall(SYS_unlinkat, dir, name, flags);
}

int fsync(int fd)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0)
        path[0] = '\0';
    hold("fsync", path);
    return fdatasync(fd);
}
