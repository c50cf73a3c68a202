/* unit_lib.c -- see unit_lib.h. */
#include "tests/unit/unit_lib.h"
#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct CMUnitTest tests[128];
static size_t n_tests;

void tests_add(struct CMUnitTest test)
{
    if (n_tests == sizeof tests / sizeof *tests)
        abort();
    tests[n_tests++] = test;
}

void tests_leave_out(const void *initial_state)
{
    size_t n = 0;
    for (size_t i = 0; i < n_tests; i++)
        if (tests[i].initial_state != initial_state)
            tests[n++] = tests[i];
    n_tests = n;
}

int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

void assert_says(const char *part)
{
    if (strstr(fsdp_error_get()->what, part) == NULL)
        fail_msg("got \"%s\", expected \"%s\" in it", fsdp_error_get()->what, part);
    assert_true(fsdp_error_get()->hint[0] != '\0');
}

void assert_refused(fsdp_status expected, fsdp_status got, const char *part, const char *call)
{
    if (got != expected)
        fail_msg("%s: got %s, expected %s", call, fsdp_status_name(got),
                 fsdp_status_name(expected));
    if (expected != FSDP_OK)
        assert_says(part);
}

void assert_aborts(void (*fn)(void))
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka's handler would report in the child */
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static char dir[256];

int temp_dir_make(void **state)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.200s/%.40s.XXXXXX", tmp ? tmp : "/tmp",
             program_invocation_short_name);
    return mkdtemp(dir) != NULL ? 0 : -1;
}

int temp_dir_remove(void **state)
{
    char command[320];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

const char *in_dir(const char *name)
{
    static char paths[16][512];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

const char *write_bytes(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n_bytes, f), n_bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

int files_like(const char *pattern)
{
    glob_t found;
    int n = glob(in_dir(pattern), 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return n;
}
