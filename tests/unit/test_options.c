/* test_options.c -- what a command line gives, every error's text, --help, and
 * 100,000 random lines. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/options.h"
#include "common/base/philox.h"

typedef struct cfg {
    int64_t steps, seed, fsdp_size, offset;
    double lr, momentum;
    const char *data, *save;
    bool plan, cpu_offload;
    int sharding, reduction;
} cfg;

#define FIELD(member) .offset = offsetof(cfg, member)
static const option_spec TABLE[] = {
    {.name = "steps",
     .kind = OPT_INT,
     FIELD(steps),
     .def = "20",
     .min = 0,
     .max = 1e9,
     .group = "Training",
     .help = "optimizer steps"},
    {.name = "seed", .kind = OPT_INT, FIELD(seed), .def = "0", .help = "of everything random"},
    {.name = "lr",
     .kind = OPT_DOUBLE,
     FIELD(lr),
     .def = "3e-4",
     .min = 0,
     .max = 1,
     .help = "learning rate at the end of the warm-up, from which the schedule then descends"},
    {.name = "momentum", .kind = OPT_DOUBLE, FIELD(momentum), .help = "of SGD"},
    {.name = "offset", .kind = OPT_INT, FIELD(offset), .min = -9, .max = 5, .help = "any"},
    {.name = "data", .kind = OPT_STRING, FIELD(data), .arg = "PATH", .help = "corpus"},
    {.name = "save",
     .kind = OPT_STRING,
     FIELD(save),
     .def = "out",
     .arg = "DIR",
     .help = "checkpoint"},
    {.name = "sharding",
     .kind = OPT_ENUM,
     FIELD(sharding),
     .def = "full",
     .choices = "full|grad-op|none",
     .group = "Sharding",
     .help = "what is kept in shards"},
    {.name = "reduction",
     .kind = OPT_ENUM,
     FIELD(reduction),
     .choices = "fast|canonical",
     .help = "how gradients are summed"},
    {.name = "fsdp-size",
     .kind = OPT_INT,
     FIELD(fsdp_size),
     .min = 1,
     .max = 1e30,
     .help = "ranks of a shard group"},
    {.name = "cpu-offload",
     .kind = OPT_BOOL,
     FIELD(cpu_offload),
     .help = "masters stay on the host"},
    {.name = "plan", .kind = OPT_BOOL, FIELD(plan), .help = "show it"},
    {0}};

enum { MAX_ARGS = 16 };

/* parse -- splits line at blanks into argv[1..] and parses it; strings live until the next call. */
static fsdp_status parse(const char *line, cfg *c)
{
    static char words[4096];
    char *argv[MAX_ARGS + 1] = {(char[]){"prog"}, NULL}, *rest = NULL;
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok_r(words, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        assert_true(argc < MAX_ARGS);
        argv[argc++] = w;
        argv[argc] = NULL;
    }
    *c = (cfg){0};
    return options_parse(TABLE, "prog", argc, argv, c);
}

static void assert_error(const char *line, const char *what, const char *hint)
{
    cfg c;
    assert_int_equal(parse(line, &c), FSDP_EINVAL);
    assert_int_equal(fsdp_error_get()->status, FSDP_EINVAL);
    assert_string_equal(fsdp_error_get()->what, what);
    assert_string_equal(fsdp_error_get()->hint, hint);
}

static void test_defaults(void **state)
{
    (void)state;
    cfg c;
    assert_int_equal(parse("", &c), FSDP_OK);
    assert_int_equal(c.steps, 20);
    assert_int_equal(c.seed, 0);
    assert_int_equal(c.fsdp_size, 0); /* no default: zero, though below its range */
    assert_true(c.lr == 3e-4 && c.momentum == 0.0);
    assert_null(c.data);
    assert_string_equal(c.save, "out");
    assert_int_equal(c.sharding, 0);
    assert_int_equal(c.reduction, 0);
    assert_true(!c.plan && !c.cpu_offload);
    c = (cfg){0};
    assert_int_equal(options_parse(TABLE, "prog", 0, NULL, &c), FSDP_OK); /* no argv at all */
    assert_int_equal(c.steps, 20);
}

static void test_values(void **state)
{
    (void)state;
    cfg c;
    assert_int_equal(parse("--steps 3 --seed=-7 --lr .5 --momentum -1e3 --data a=b --sharding=none "
                           "--reduction canonical --cpu-offload --fsdp-size +4",
                           &c),
                     FSDP_OK);
    assert_int_equal(c.steps, 3);
    assert_int_equal(c.seed, -7);
    assert_int_equal(c.fsdp_size, 4);
    assert_true(c.lr == 0.5 && c.momentum == -1000.0);
    assert_string_equal(c.data, "a=b");
    assert_int_equal(c.sharding, 2);
    assert_int_equal(c.reduction, 1);
    assert_true(c.cpu_offload);

    assert_int_equal(parse("--fsdp_size=3 --cpu_offload", &c), FSDP_OK); /* underscores */
    assert_true(c.fsdp_size == 3 && c.cpu_offload);
    assert_int_equal(parse("--steps=3 --save=a --data --plan --steps=4", &c), FSDP_EINVAL);
    assert_int_equal(parse("--steps=3 --save=a_b --data=--plan --steps=4", &c), FSDP_OK);
    assert_int_equal(c.steps, 4);       /* the last wins */
    assert_string_equal(c.save, "a_b"); /* an underscore of a value stays */
    assert_string_equal(c.data, "--plan");
    assert_false(c.plan);
    assert_int_equal(parse("--steps=0 --lr=1", &c), FSDP_OK); /* ends of ranges belong to them */
    assert_int_equal(parse("--steps=1000000000 --lr=0", &c), FSDP_OK);
    assert_int_equal(parse("--seed=9223372036854775807", &c), FSDP_OK);
    assert_true(c.seed == INT64_MAX);
    assert_int_equal(parse("--seed=-9223372036854775808", &c), FSDP_OK);
    assert_true(c.seed == INT64_MIN);
    assert_int_equal(parse("--momentum=1e-320", &c), FSDP_OK); /* a denormal is a number */
    assert_true(c.momentum == 1e-320);
}

static void test_whole_numbers_refused(void **state)
{
    (void)state;
    static const char *const INTS[] = {"",
                                       "x",
                                       "3x",
                                       "3.0",
                                       "1e3",
                                       "0x10",
                                       "--3",
                                       "+-3",
                                       "+",
                                       "-",
                                       "nan",
                                       "inf",
                                       "3,0",
                                       "-1",
                                       "1000000001",
                                       "99999999999999999999",
                                       "-99999999999999999999"};
    for (size_t i = 0; i < sizeof INTS / sizeof INTS[0]; i++) {
        char line[128], what[256];
        snprintf(line, sizeof line, "--steps=%s", INTS[i]);
        snprintf(what, sizeof what,
                 "--steps: got '%s', expected a whole number from 0 to 1000000000", INTS[i]);
        assert_error(line, what, "the default is --steps=20");
    }
}

static void test_numbers_refused(void **state)
{
    (void)state;
    static const char *const DOUBLES[] = {
        "",     "x",      "0.1x", "nan", "NAN", "inf",   "-inf", "infinity", "0x1p-2", "1e999",
        "-0.1", "1.0001", "1e",   ".",   "+",   "0.1.2", "e5",   "--1",      "nan(1)", "1,0"};
    char line[128], what[256];
    for (size_t i = 0; i < sizeof DOUBLES / sizeof DOUBLES[0]; i++) {
        snprintf(line, sizeof line, "--lr=%s", DOUBLES[i]);
        snprintf(what, sizeof what, "--lr: got '%s', expected a finite number from 0 to 1",
                 DOUBLES[i]);
        assert_error(line, what, "the default is --lr=3e-4");
    }
    assert_error("--seed=9223372036854775808",
                 "--seed: got '9223372036854775808', expected a whole number",
                 "the default is --seed=0");
    assert_error("--fsdp-size=0", "--fsdp-size: got '0', expected a whole number of at least 1",
                 "prog --help describes --fsdp-size");
    assert_error("--offset=6", "--offset: got '6', expected a whole number from -9 to 5",
                 "prog --help describes --offset");
    assert_error("--momentum=inf", "--momentum: got 'inf', expected a finite number",
                 "prog --help describes --momentum");
    cfg c;
    char *blank[] = {(char[]){"prog"}, (char[]){"--steps"}, (char[]){" 3"}, NULL};
    assert_int_equal(options_parse(TABLE, "prog", 3, blank, &c), FSDP_EINVAL);
    blank[1] = (char[]){"--lr"}, blank[2] = (char[]){"\t0.5"};
    assert_int_equal(options_parse(TABLE, "prog", 3, blank, &c), FSDP_EINVAL);
}

static void test_other_errors(void **state)
{
    (void)state;
    const char *const all = "prog --help lists all options";
    const char *const forms = "options are written --name=value or --name value";
    assert_error("--sharding=grad", "--sharding: got 'grad', expected one of full|grad-op|none",
                 "pass one of full|grad-op|none; the default is --sharding=full");
    assert_error("--sharding=full|grad-op",
                 "--sharding: got 'full|grad-op', expected one of full|grad-op|none",
                 "pass one of full|grad-op|none; the default is --sharding=full");
    assert_error("--reduction=", "--reduction: got '', expected one of fast|canonical",
                 "pass one of fast|canonical; prog --help describes --reduction");
    assert_error("--data=", "--data: got '', expected a value", "prog --help describes --data");
    assert_error("--steps", "--steps: no value given", "write --name=value, all in one word");
    assert_error("--data --plan", "--data: no value given", "write --name=value, all in one word");
    assert_error("--plan=yes", "--plan: got 'yes', expected no value",
                 "write the option alone, or leave it out");
    assert_error("steps", "got 'steps', expected an option", forms);
    assert_error("--steps 3 4", "got '4', expected an option", forms);
    assert_error("-s", "got '-s', expected an option", forms);
    assert_error("-", "got '-', expected an option", forms);
    assert_error("--", "unknown option --", all);
    assert_error("--=3", "unknown option --", all);
    assert_error("--shardng=full", "unknown option --shardng",
                 "did you mean --sharding? prog --help lists all options");
    assert_error("--fdsp_size=3", "unknown option --fdsp_size",
                 "did you mean --fsdp-size? prog --help lists all options");
    assert_error("--stepsize=3", "unknown option --stepsize",
                 "did you mean --steps? prog --help lists all options");
    assert_error("--zzzzzz", "unknown option --zzzzzz", all);
    assert_error("--Steps=1", "unknown option --Steps",
                 "did you mean --steps? prog --help lists all options");
    assert_error("--data=\xc3\xa4 \x1b[31m\n\x7f", "got '\\x1b[31m\\x0a\\x7f', expected an option",
                 forms);
}

/* Names are written out: the beginning of a name is none, however clear. */
static void test_abbreviations_refused(void **state)
{
    (void)state;
    const char *const all = "prog --help lists all options";
    assert_error("--step=3", "unknown option --step",
                 "did you mean --steps? prog --help lists all options");
    assert_error("--cpu-off", "unknown option --cpu-off",
                 "did you mean --cpu-offload? prog --help lists all options");
    assert_error("--shard=none", "unknown option --shard",
                 "did you mean --sharding? prog --help lists all options");
    assert_error("--s=3", "unknown option --s",
                 "did you mean --steps? prog --help lists all options");
    assert_error("--hel", "unknown option --hel", all);
    assert_error("--save-ever=3", "unknown option --save-ever", all);
    assert_error("--stepss=3", "unknown option --stepss",
                 "did you mean --steps? prog --help lists all options");
}

static void test_long_words(void **state)
{
    (void)state;
    char line[300], want[128];
    memset(line, 'q', sizeof line);
    line[sizeof line - 1] = '\0';
    snprintf(want, sizeof want, "got '%.60s...', expected an option", line);
    assert_error(line, want, "options are written --name=value or --name value");
    line[0] = line[1] = '-';
    snprintf(want, sizeof want, "unknown option --%.60s...", line + 2);
    assert_error(line, want, "prog --help lists all options");
}

/* ---- --help ---------------------------------------------------------------------------------- */

static const char HELP_TEXT[] =
    "Usage: prog [OPTION...]\n"
    "tests options\n"
    "\n"
    "Training:\n"
    "  --steps=N                   optimizer steps (default 20; from 0 to\n"
    "                              1000000000)\n"
    "  --seed=N                    of everything random (default 0)\n"
    "  --lr=X                      learning rate at the end of the warm-up, from\n"
    "                              which the schedule then descends (default 3e-4;\n"
    "                              from 0 to 1)\n"
    "  --momentum=X                of SGD\n"
    "  --offset=N                  any (from -9 to 5)\n"
    "  --data=PATH                 corpus\n"
    "  --save=DIR                  checkpoint (default out)\n"
    "\n"
    "Sharding:\n"
    "  --sharding=full|grad-op|none\n"
    "                              what is kept in shards (default full)\n"
    "  --reduction=fast|canonical  how gradients are summed\n"
    "  --fsdp-size=N               ranks of a shard group (of at least 1)\n"
    "  --cpu-offload               masters stay on the host\n"
    "  --plan                      show it\n"
    "\n"
    "  --help                      print this list\n";

/* help_into -- what options_print_help prints to the file. */
static fsdp_status help_into(FILE *file, char *got, size_t got_bytes)
{
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && file != NULL);
    dup2(fileno(file), STDOUT_FILENO);
    fsdp_status status = options_print_help(TABLE, "prog", "tests options");
    fflush(stdout);
    clearerr(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    got[fread(got, 1, got_bytes - 1, file)] = '\0';
    fclose(file);
    return status;
}

static void test_help(void **state)
{
    (void)state;
    static char got[8192];
    cfg c;
    assert_int_equal(help_into(tmpfile(), got, sizeof got), FSDP_OK);
    assert_string_equal(got, HELP_TEXT);
    assert_int_equal(help_into(fopen("/dev/full", "r+"), got, sizeof got), FSDP_EIO);
    assert_int_equal(parse("--steps=3 --help --bogus", &c), FSDP_HELP);
    assert_int_equal(c.steps, 3); /* no field belongs to --help */
    assert_int_equal(parse("--help=steps", &c), FSDP_HELP);
    assert_int_equal(parse("--bogus --help", &c), FSDP_EINVAL);
    assert_int_equal(parse("--data --help", &c), FSDP_EINVAL);
}

/* Nothing but options_print_help prints: a rank that is not to speak parses --help all the same. */
static void test_parsing_prints_nothing(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    cfg c;
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && file != NULL);
    dup2(fileno(file), STDOUT_FILENO);
    fsdp_status help = parse("--help", &c), wrong = parse("--bogus", &c);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    fseek(file, 0, SEEK_END);
    assert_int_equal(ftell(file), 0);
    fclose(file);
    assert_int_equal(help, FSDP_HELP);
    assert_int_equal(wrong, FSDP_EINVAL);
}

/* ---- canonical ------------------------------------------------------------------------------- */

static void test_canonical(void **state)
{
    (void)state;
    cfg c;
    char text[512], cut[16];
    const char *want = "steps=3 seed=-1 lr=0.1 momentum=0.30000000000000004 offset=0 data=a?b "
                       "save=out sharding=grad-op reduction=fast fsdp-size=0 cpu-offload=1 plan=0";
    assert_int_equal(parse("--steps=3 --seed=-1 --lr=0.1 --momentum=0.30000000000000004 "
                           "--data=a\nb --sharding=grad-op --cpu-offload",
                           &c),
                     FSDP_OK);
    assert_int_equal(options_canonical(TABLE, &c, text, sizeof text), FSDP_OK);
    assert_string_equal(text, want);
    memset(cut, 'z', sizeof cut);
    assert_int_equal(options_canonical(TABLE, &c, cut, 10), FSDP_OK);
    assert_string_equal(cut, "steps=3 s");
    assert_int_equal(cut[10], 'z');
}

/* ---- programmer errors ----------------------------------------------------------------------- */

static void test_bad_default_aborts(void **state)
{
    (void)state;
    static const option_spec bad[] = {
        {.name = "steps", .kind = OPT_INT, .def = "-1", .min = 0, .max = 9}, {0}};
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        cfg c = {0};
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) != NULL)
            options_parse(bad, "prog", 0, NULL, &c);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* ---- random lines ---------------------------------------------------------------------------- */

/* random_word -- an option, half of one, a value, or noise; NUL-terminated in word[64]. */
static void random_word(char *word, uint32_t *draw)
{
    static const char *const PARTS[] = {"--steps",     "--seed=",
                                        "--lr",        "--momentum=",
                                        "--data",      "--save=",
                                        "--sharding=", "--fsdp_size",
                                        "--plan",      "--cpu",
                                        "--s",         "--steps",
                                        "--",          "--=",
                                        "=",           "3",
                                        "-1",          "1e309",
                                        "full",        "grad-op|none",
                                        "nan",         "99999999999999999999",
                                        "\xf0\x9f",    "\x1b]0;",
                                        "|",           "canonical"};
    size_t used = 0;
    word[0] = '\0';
    for (uint32_t pieces = philox_u32(9, 1, (*draw)++) % 4; pieces > 0; pieces--) {
        uint32_t w = philox_u32(9, 1, (*draw)++);
        char noise[2] = {(char)(w >> 8), '\0'};
        const char *part = w % 4 == 0 ? noise : PARTS[(w >> 16) % (sizeof PARTS / sizeof PARTS[0])];
        used += (size_t)snprintf(word + used, 64 - used, "%s", part);
        if (used > 40)
            break;
    }
}

/* Whatever the words: a status with words, fields in their ranges, no --help by accident. */
static void test_random_lines(void **state)
{
    (void)state;
    uint32_t draw = 0;
    int n_ok = 0, n_bad = 0;
    for (int line = 0; line < 100000; line++) {
        char words[6][64], *argv[7] = {(char[]){"prog"}};
        int argc = 1;
        for (uint32_t n = philox_u32(9, 1, draw++) % 6; n > 0; n--, argc++) {
            random_word(words[argc], &draw);
            argv[argc] = strdup(words[argc]); /* on the heap: reading past the end shows */
        }
        argv[argc] = (char *)1; /* argc alone says where it ends */
        cfg c = {0};
        char text[256];
        fsdp_status status = options_parse(TABLE, "prog", argc, argv, &c);
        if (status == FSDP_OK) {
            n_ok++;
            assert_true(c.steps >= 0 && c.steps <= 1000000000 && c.lr >= 0 && c.lr <= 1);
            assert_true(isfinite(c.momentum) && c.sharding >= 0 && c.sharding <= 2);
            assert_int_equal(options_canonical(TABLE, &c, text, sizeof text), FSDP_OK);
        } else {
            n_bad++;
            assert_int_equal(status, FSDP_EINVAL);
            for (const char *s = fsdp_error_get()->what; *s != '\0'; s++)
                assert_true((unsigned char)*s >= 0x20 && *s != 0x7f);
        }
        for (int i = 1; i < argc; i++)
            free(argv[i]);
    }
    assert_true(n_ok > 10000 && n_bad > 10000); /* both ways were walked */
}

/* Both spellings of a name; what is no option has no value. */
static void test_takes_next(void **state)
{
    (void)state;
    static const char *const values[] = {"--steps", "--fsdp-size", "--fsdp_size", "--data",
                                         "--sharding"};
    static const char *const alone[] = {"--plan",        "--cpu-offload", "--cpu_offload",
                                        "--steps=3",     "--unknown",     "--help",
                                        "--fsdp_size=2", "word",          "--"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_true(options_takes_next(TABLE, values[i]));
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        assert_false(options_takes_next(TABLE, alone[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_whole_numbers_refused),
        cmocka_unit_test(test_numbers_refused),
        cmocka_unit_test(test_other_errors),
        cmocka_unit_test(test_abbreviations_refused),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_parsing_prints_nothing),
        cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_takes_next),
        cmocka_unit_test(test_bad_default_aborts),
        cmocka_unit_test(test_random_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
