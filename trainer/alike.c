/* alike.c -- checks that all ranks compute alike: the same program in the same floating-point mode
 * and, if the bits depend on them, made by the same compiler for the same instructions.
 *
 * The Makefile sets FSDP_SOURCES, a checksum of the sources, and FSDP_TARGET, one of the compiler's
 * flags and predefined macros. */
#include <float.h>
#include <string.h>
#include "trainer/trainer.h"

static const char USUAL_MODE[] = "rounds to nearest, reads and writes denormals";

/* comm_same with a hint of its own. */
static fsdp_status same(const trainer *t, const char *what, const char *text, const char *hint)
{
    const fsdp_status status = comm_same(t->run.world, what, text);
    if (status != FSDP_EMISMATCH)
        return status;
    return fsdp_error(status, hint, "%s", fsdp_error_get()->what);
}

/* The floating-point mode of this thread, from results that depend on it. Threads inherit it. */
static void mode_describe(char *text, size_t text_bytes)
{
    /* little: a quarter of the last bit of 1 */
    volatile float one = 1, little = 0x1p-25f, least = FLT_MIN, denormal = FLT_TRUE_MIN;
    const char *cuts = one + 3 * little > one ? "to nearest" : "to zero";
    snprintf(text, text_bytes, "rounds %s, %s and %s denormals",
             one + little > one     ? "up"
             : -one - little < -one ? "down"
                                    : cuts,
             denormal * 0x1p30f > 0 ? "reads" : "ignores", least / 2 > 0 ? "writes" : "flushes");
}

#define MODE_HINT                                                                                  \
    "unset what sets it, such as LD_PRELOAD of a library that was linked with -ffast-math"

fsdp_status check_float_mode(const char *option, const char *value)
{
    char mode[80], hint[160];
    mode_describe(mode, sizeof mode);
    if (strcmp(mode, USUAL_MODE) == 0)
        return FSDP_OK;
    snprintf(hint, sizeof hint, MODE_HINT ", or pass --%s fast", option);
    return fsdp_error(FSDP_EINVAL, hint, "--%s %s: this process %s, expected one that %s", option,
                      value, mode, USUAL_MODE);
}

fsdp_status trainer_check_program(const trainer *t)
{
    char mode[80];
    mode_describe(mode, sizeof mode);
    TRY(same(t, "the program", "sources " TEXT(FSDP_SOURCES), "copy one build to all hosts"));
    return same(t, "the floating-point mode", mode, MODE_HINT);
}

fsdp_status trainer_check_bits(const trainer *t)
{
    char library[96], made[280];
    ops_cpu_library(library, sizeof library);
    const bool is_canonical = t->opt->reduction == GRAD_ACC_CANONICAL;
    if (is_canonical)
        TRY(check_float_mode("reduction", "canonical"));
    snprintf(made, sizeof made, "compiler " __VERSION__ ", target " TEXT(FSDP_TARGET) ", %s",
             library);
    const fsdp_status status =
        same(t, "the compiler or the processor", made,
             "copy one build to all hosts, and use hosts with one kind of processor; or pass --ops "
             "portable, which has the same bits on all, or --reduction fast");
    if (status != FSDP_EMISMATCH ||
        (is_canonical && t->opt->ops == OPS_FAST && device_runs_c(t->run.dev)))
        return status;
    if (comm_rank(t->run.world) == 0)
        fprintf(stderr, "note: %s\n", fsdp_error_get()->what);
    return FSDP_OK;
}
