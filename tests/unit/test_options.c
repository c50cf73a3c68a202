/* test_options.c -- parsing of command lines, the text of every error, --help.
 * tests/cli/fuzz_options.c tests random lines. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/options.h"
#include "tests/unit/unit_lib.h"

typedef struct cfg {
    int64_t steps, seed, fsdp_size, offset;
    double lr, momentum;
    const char *data, *save;
    bool plan, cpu_offload;
    int sharding, reduction;
} cfg;

/* clang-format off */
#define FIELD(member) .offset = offsetof(cfg, member)
static const option_spec TABLE[] = {
    {.name = "steps", .kind = OPT_INT, FIELD(steps), .def = "20", .min = 0, .max = 1e9, .group = "Training",
     .help = "optimizer steps"},
    {.name = "seed", .kind = OPT_INT, FIELD(seed), .def = "0", .help = "of everything random"},
    {.name = "lr", .kind = OPT_DOUBLE, FIELD(lr), .def = "3e-4", .min = 0, .max = 1,
     .help = "learning rate at the end of the warm-up, from which the schedule then descends"},
    {.name = "momentum", .kind = OPT_DOUBLE, FIELD(momentum), .help = "of SGD"},
    {.name = "offset", .kind = OPT_INT, FIELD(offset), .min = -9, .max = 5, .help = "any"},
    {.name = "data", .kind = OPT_STRING, FIELD(data), .arg = "PATH", .help = "corpus"},
    {.name = "save", .kind = OPT_STRING, FIELD(save), .def = "out", .arg = "DIR", .help = "checkpoint"},
    {.name = "sharding", .kind = OPT_ENUM, FIELD(sharding), .def = "full", .choices = "full|grad-op|none",
     .group = "Sharding", .help = "what is kept in shards"},
    {.name = "reduction", .kind = OPT_ENUM, FIELD(reduction), .choices = "fast|canonical",
     .help = "how gradients are summed"},
    {.name = "fsdp-size", .kind = OPT_INT, FIELD(fsdp_size), .min = 1, .max = 1e30, .help = "ranks of a shard group"},
    {.name = "cpu-offload", .kind = OPT_BOOL, FIELD(cpu_offload), .help = "masters stay on the host"},
    {.name = "plan", .kind = OPT_BOOL, FIELD(plan), .help = "show it"},
    {0}};
/* clang-format on */

enum { MAX_ARGS = 16 };

/* parse_by -- split line at blanks into argv[1..] and parse it by the table; strings live until the
 * next call. */
static fsdp_status parse_by(const option_spec *table, const char *line, cfg *c)
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
    return options_parse(table, "prog", argc, argv, c);
}

static fsdp_status parse(const char *line, cfg *c)
{
    return parse_by(TABLE, line, c);
}

static void assert_error(const char *line, const char *what, const char *hint)
{
    cfg c;
    assert_int_equal(parse(line, &c), FSDP_EINVAL);
    assert_int_equal(fsdp_error_get()->status, FSDP_EINVAL);
    assert_string_equal(fsdp_error_get()->what, what);
    assert_string_equal(fsdp_error_get()->hint, hint);
}

/* An unknown name; `meant` is the option that the hint proposes, or NULL. */
static void assert_unknown(const char *line, const char *name, const char *meant)
{
    char what[64], hint[96] = "";
    snprintf(what, sizeof what, "unknown option %s", name);
    if (meant)
        snprintf(hint, sizeof hint, "did you mean %s? ", meant);
    strcat(hint, "prog --help lists all options");
    assert_error(line, what, hint);
}

TEST(test_defaults)
{
    cfg c;
    OK(parse("", &c));
    assert_int_equal(c.steps, 20);
    assert_int_equal(c.seed, 0);
    assert_int_equal(c.fsdp_size, 0); /* without a default: zero, though below its range */
    assert_true(c.lr == 3e-4 && c.momentum == 0.0);
    assert_null(c.data);
    assert_string_equal(c.save, "out");
    assert_int_equal(c.sharding, 0);
    assert_int_equal(c.reduction, 0);
    assert_true(!c.plan && !c.cpu_offload);
    c = (cfg){0};
    OK(options_parse(TABLE, "prog", 0, NULL, &c)); /* no argv at all */
    assert_int_equal(c.steps, 20);
}

TEST(test_values)
{
    cfg c;
    OK(parse("--steps 3 --seed=-7 --lr .5 --momentum -1e3 --data a=b --sharding=none "
             "--reduction canonical --cpu-offload --fsdp-size +4",
             &c));
    assert_int_equal(c.steps, 3);
    assert_int_equal(c.seed, -7);
    assert_int_equal(c.fsdp_size, 4);
    assert_true(c.lr == 0.5 && c.momentum == -1000.0);
    assert_string_equal(c.data, "a=b");
    assert_int_equal(c.sharding, 2);
    assert_int_equal(c.reduction, 1);
    assert_true(c.cpu_offload);

    OK(parse("--fsdp_size=3 --cpu_offload", &c)); /* underscores */
    assert_true(c.fsdp_size == 3 && c.cpu_offload);
    assert_int_equal(parse("--steps=3 --save=a --data --plan --steps=4", &c), FSDP_EINVAL);
    OK(parse("--steps=3 --save=a_b --data=--plan --steps=4", &c));
    assert_int_equal(c.steps, 4);       /* the last value wins */
    assert_string_equal(c.save, "a_b"); /* an underscore in a value stays */
    assert_string_equal(c.data, "--plan");
    assert_false(c.plan);
    OK(parse("--steps=0 --lr=1", &c)); /* the ends of a range are valid */
    OK(parse("--steps=1000000000 --lr=0", &c));
    OK(parse("--seed=9223372036854775807", &c));
    assert_true(c.seed == INT64_MAX);
    OK(parse("--seed=-9223372036854775808", &c));
    assert_true(c.seed == INT64_MIN);
    OK(parse("--momentum=1e-320", &c)); /* a denormal is a number */
    assert_true(c.momentum == 1e-320);
}

TEST(test_whole_numbers_refused)
{
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

TEST(test_numbers_refused)
{
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
    static const char *const TINY[] = {"1e-31", "1e-320", "1e-400",
                                       "0.0000000000000000000000000000009"};
    for (size_t i = 0; i < sizeof TINY / sizeof TINY[0]; i++) {
        snprintf(line, sizeof line, "--lr=%s", TINY[i]);
        snprintf(what, sizeof what,
                 "--lr: got '%s', expected a finite number from 0 to 1, either 0 or at least 1e-30",
                 TINY[i]);
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

TEST(test_other_errors)
{
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
    assert_error("--plan yes", "--plan: got 'yes', expected no value",
                 "write the option alone, or leave it out");
    assert_error("--steps 3 --cpu-offload 1 --plan", "--cpu-offload: got '1', expected no value",
                 "write the option alone, or leave it out");
    assert_error("steps", "got 'steps', expected an option", forms);
    assert_error("--steps 3 4", "got '4', expected an option", forms);
    assert_error("-s", "got '-s', expected an option", forms);
    assert_error("-", "got '-', expected an option", forms);
    assert_unknown("--", "--", NULL);
    assert_unknown("--=3", "--", NULL);
    assert_unknown("--shardng=full", "--shardng", "--sharding");
    assert_unknown("--fdsp_size=3", "--fdsp_size", "--fsdp-size");
    assert_unknown("--stepsize=3", "--stepsize", "--steps");
    assert_unknown("--zzzzzz", "--zzzzzz", NULL);
    assert_unknown("--Steps=1", "--Steps", "--steps");
    assert_error("--data=\xc3\xa4 \x1b[31m\n\x7f", "got '\\x1b[31m\\x0a\\x7f', expected an option",
                 forms);
}

/* An abbreviated name is refused, even if it is unambiguous. */
TEST(test_abbreviations_refused)
{
    assert_unknown("--step=3", "--step", "--steps");
    assert_unknown("--cpu-off", "--cpu-off", "--cpu-offload");
    assert_unknown("--shard=none", "--shard", "--sharding");
    assert_unknown("--s=3", "--s", "--steps");
    assert_unknown("--hel", "--hel", NULL);
    assert_unknown("--save-ever=3", "--save-ever", NULL);
    assert_unknown("--stepss=3", "--stepss", "--steps");
}

TEST(test_long_words)
{
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

/* printed -- run fn with stdout redirected to `file`, and copy the output to `got`. Returns fn's
 * status. */
static fsdp_status printed(fsdp_status (*fn)(void), FILE *file, char *got, size_t got_bytes)
{
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && file != NULL);
    dup2(fileno(file), STDOUT_FILENO);
    fsdp_status status = fn();
    fflush(stdout);
    clearerr(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    got[fread(got, 1, got_bytes - 1, file)] = '\0';
    fclose(file);
    return status;
}

static fsdp_status print_help(void)
{
    return options_print_help(TABLE, "prog [OPTION...]", "tests options");
}

static fsdp_status parse_help_and_worse(void)
{
    cfg c;
    assert_int_equal(parse("--bogus", &c), FSDP_EINVAL);
    return parse("--help", &c);
}

TEST(test_help)
{
    static char got[8192];
    cfg c;
    OK(printed(print_help, tmpfile(), got, sizeof got));
    assert_string_equal(got, HELP_TEXT);
    assert_int_equal(printed(print_help, fopen("/dev/full", "r+"), got, sizeof got), FSDP_EIO);
    assert_int_equal(parse("--steps=3 --help --bogus", &c), FSDP_HELP);
    assert_int_equal(c.steps, 3); /* --help sets no field */
    assert_int_equal(parse("--help=steps", &c), FSDP_HELP);
    assert_int_equal(parse("--bogus --help", &c), FSDP_EINVAL);
    assert_int_equal(parse("--data --help", &c), FSDP_EINVAL);
}

/* Only options_print_help prints, so that a rank that must stay silent can parse --help. */
TEST(test_parsing_prints_nothing)
{
    char got[64];
    assert_int_equal(printed(parse_help_and_worse, tmpfile(), got, sizeof got), FSDP_HELP);
    assert_string_equal(got, "");
}

/* ---- canonical ------------------------------------------------------------------------------- */

TEST(test_canonical)
{
    cfg c;
    char text[512], cut[16];
    const char *want = "steps=3 seed=-1 lr=0.1 momentum=0.30000000000000004 offset=0 data=a?b "
                       "save=out sharding=grad-op reduction=fast fsdp-size=0 cpu-offload=1 plan=0";
    OK(parse("--steps=3 --seed=-1 --lr=0.1 --momentum=0.30000000000000004 "
             "--data=a\nb --sharding=grad-op --cpu-offload",
             &c));
    OK(options_canonical(TABLE, &c, text, sizeof text));
    assert_string_equal(text, want);
    memset(cut, 'z', sizeof cut);
    OK(options_canonical(TABLE, &c, cut, 10));
    assert_string_equal(cut, "steps=3 s");
    assert_int_equal(cut[10], 'z');
    assert_string_equal(options_word(TABLE, "sharding", 0).text, "full");
    assert_string_equal(options_word(TABLE, "sharding", 1).text, "grad-op");
    assert_string_equal(options_word(TABLE, "sharding", 2).text, "none");
}

/* ---- programmer errors ----------------------------------------------------------------------- */

static void parse_bad_default(void)
{
    static const option_spec bad[] = {
        {.name = "steps", .kind = OPT_INT, .def = "-1", .min = 0, .max = 9}, {0}};
    cfg c = {0};
    options_parse(bad, "prog", 0, NULL, &c);
}

TEST(test_bad_default_aborts)
{
    assert_aborts(parse_bad_default);
}

/* Options that only have an effect beside others. */
/* clang-format off */
static const option_spec NEEDY[] = {
    {.name = "steps", .kind = OPT_INT, FIELD(steps), .def = "2", .needs = {{.rule = "data"}}, .help = "n"},
    {.name = "lr", .kind = OPT_DOUBLE, FIELD(lr), .def = "1e-3", .needs = {{.rule = "plan"}}, .help = "x"},
    {.name = "offset", .kind = OPT_INT, FIELD(offset), .needs = {{.rule = "plan|data|momentum"}}, .help = "n"},
    {.name = "save", .kind = OPT_STRING, FIELD(save), .def = "out", .needs = {{.rule = "offset"}}, .help = "s"},
    {.name = "sharding", .kind = OPT_ENUM, FIELD(sharding), .def = "full", .choices = "none|full", .needs = {{.rule = "momentum"}}, .help = "e"},
    {.name = "fsdp-size", .kind = OPT_INT, FIELD(fsdp_size), .needs = {{.rule = "reduction=fast"}}, .help = "n"},
    {.name = "seed", .kind = OPT_INT, FIELD(seed), .needs = {{.rule = "reduction=canonical|reduction=exact"}}, .help = "n"},
    {.name = "reduction", .kind = OPT_ENUM, FIELD(reduction), .def = "fast", .choices = "fast|canonical|exact", .help = "e"},
    {.name = "cpu-offload", .kind = OPT_BOOL, FIELD(cpu_offload), .needs = {{.rule = "data"}}, .help = "b"},
    {.name = "data", .kind = OPT_STRING, FIELD(data), .arg = "PATH", .help = "s"},
    {.name = "momentum", .kind = OPT_DOUBLE, FIELD(momentum), .help = "x"},
    {.name = "plan", .kind = OPT_BOOL, FIELD(plan), .help = "b"},
    {0}};
/* clang-format on */

/* Rules with several groups, with !, for one value, in words of their own; a flag that is implied;
 * a number that is not given. */
/* clang-format off */
static const option_spec RULED[] = {
    {.name = "steps", .kind = OPT_INT, FIELD(steps), .needs = {{.rule = "plan|data&!cpu-offload&reduction!=fast", .says = "all of that"}, {.rule = "seed=3"}}, .help = "n"},
    {.name = "sharding", .kind = OPT_ENUM, FIELD(sharding), .choices = "none|full|hybrid", .needs = {{.rule = "seed", .at = "full"}, {.rule = "seed=4", .at = "hybrid"}}, .help = "e"},
    {.name = "data", .kind = OPT_STRING, FIELD(data), .needs = {{.rule = "save", .at = "auto"}}, .help = "s"},
    {.name = "lr", .kind = OPT_DOUBLE, FIELD(lr), .unset = -2, .max = 1, .help = "x"},
    {.name = "momentum", .kind = OPT_DOUBLE, FIELD(momentum), .needs = {{.rule = "!lr|lr=0", .says = "no --lr"}}, .implies = "plan", .help = "x"},
    {.name = "seed", .kind = OPT_INT, FIELD(seed), .implies = "cpu-offload", .help = "n"},
    {.name = "save", .kind = OPT_STRING, FIELD(save), .arg = "DIR", .help = "s"},
    {.name = "reduction", .kind = OPT_ENUM, FIELD(reduction), .choices = "fast|canonical", .help = "e"},
    {.name = "cpu-offload", .kind = OPT_BOOL, FIELD(cpu_offload), .help = "b"},
    {.name = "plan", .kind = OPT_BOOL, FIELD(plan), .help = "b"},
    {0}};
/* clang-format on */

/* A table, a line, and the error: the option as it was given and what it needs; NULL: no error. */
static const struct {
    const option_spec *table;
    const char *line, *option, *needs;
} RULES[] = {
    {NEEDY, "--steps 3", "--steps", "--data PATH"},
    {NEEDY, "--lr 1 --data x", "--lr", "--plan"},
    {NEEDY, "--offset 1", "--offset", "--plan, --data PATH or --momentum X"},
    {NEEDY, "--offset 1 --momentum 0", "--offset", "--plan, --data PATH or --momentum X"},
    {NEEDY, "--fsdp-size 1 --reduction exact", "--fsdp-size", "--reduction fast"},
    {NEEDY, "--seed 1", "--seed", "--reduction canonical or exact"},
    {NEEDY, "--save in", "--save", "--offset N"},
    {NEEDY, "--sharding none", "--sharding", "--momentum X"},
    {NEEDY, "--cpu-offload", "--cpu-offload", "--data PATH"},
    {NEEDY, "", "", NULL},
    {NEEDY, "--steps 2", "", NULL},
    {NEEDY, "--steps 3 --data x", "", NULL},
    {NEEDY, "--data x --steps 3", "", NULL},
    {NEEDY, "--lr 0.001", "", NULL},
    {NEEDY, "--lr 1e-3", "", NULL},
    {NEEDY, "--lr 1 --plan", "", NULL},
    {NEEDY, "--offset 1 --momentum 0.1", "", NULL},
    {NEEDY, "--offset 1 --data x", "", NULL},
    {NEEDY, "--offset 0", "", NULL},
    {NEEDY, "--fsdp-size 3", "", NULL},
    {NEEDY, "--seed 1 --reduction exact", "", NULL},
    {NEEDY, "--reduction canonical --seed 1", "", NULL},
    {NEEDY, "--save out", "", NULL},
    {NEEDY, "--save in --offset 1 --plan", "", NULL},
    {NEEDY, "--sharding full", "", NULL},
    {NEEDY, "--cpu-offload --data x", "", NULL},
    {RULED, "--steps 1", "--steps", "all of that"},
    {RULED, "--steps 1 --plan", "--steps", "all of that"},
    {RULED, "--steps 1 --reduction canonical", "--steps", "all of that"},
    {RULED, "--steps 1 --data x --reduction canonical --cpu-offload", "--steps", "all of that"},
    {RULED, "--steps 1 --data x --reduction canonical", "--steps", "--seed 3"},
    {RULED, "--steps 1 --plan --reduction canonical --seed 3", "--steps",
     "all of that"}, /* implied */
    {RULED, "--steps 0 --cpu-offload", "", NULL},
    {RULED, "--sharding full", "--sharding full", "--seed N"},
    {RULED, "--sharding full --seed 1", "", NULL},
    {RULED, "--sharding hybrid --seed 1", "--sharding hybrid", "--seed 4"},
    {RULED, "--sharding hybrid --seed 4", "", NULL},
    {RULED, "--data auto", "--data auto", "--save DIR"},
    {RULED, "--data auto --save x", "", NULL},
    {RULED, "--data other", "", NULL},
    {RULED, "--momentum 1 --lr 0.5", "--momentum", "no --lr"},
    {RULED, "--momentum 1 --lr 0", "", NULL},
    {RULED, "--momentum 1", "", NULL},
    {RULED, "--momentum -0 --lr 1", "", NULL},
};

TEST(test_rules)
{
    char what[128], hint[128];
    cfg c;
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        const fsdp_status status = parse_by(RULES[i].table, RULES[i].line, &c);
        assert_int_equal(status, RULES[i].needs ? FSDP_EINVAL : FSDP_OK);
        if (!RULES[i].needs)
            continue;
        snprintf(what, sizeof what, "%s: expected %s beside it, got other options", RULES[i].option,
                 RULES[i].needs);
        snprintf(hint, sizeof hint, "pass %s, or leave %s out", RULES[i].needs, RULES[i].option);
        assert_string_equal(fsdp_error_get()->what, what);
        assert_string_equal(fsdp_error_get()->hint, hint);
    }
    OK(parse_by(RULED, "", &c));
    assert_true(c.lr == -2 && !c.plan && !c.cpu_offload);
    OK(parse_by(RULED, "--momentum 1", &c));
    assert_true(c.plan && !c.cpu_offload);
    OK(parse_by(RULED, "--momentum 0 --seed 2", &c));
    assert_true(!c.plan && c.cpu_offload);
}

/* Both spellings of a name. An argument that is no option takes no value. */
TEST(test_takes_next)
{
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
    return tests_run(NULL, NULL);
}
