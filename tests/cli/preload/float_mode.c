/* float_mode.c -- sets a program's floating-point mode before main, as a library that was linked
 * with -ffast-math does. It is loaded in front of the program:
 *
 *   LD_PRELOAD=float_mode.so FLOAT_MODE=MODE[,RANK] program ...
 *
 *   MODE   flush, read, both (denormals), up, down, zero (rounding)
 *   RANK   only this rank of fsdp_run or mpiexec */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct float_mode {
    const char *name;
    uint64_t x86, arm; /* bits of MXCSR and FPCR. Arm has one bit for flush and read */
} float_mode;

static const float_mode MODES[] = {
    {"flush", 1 << 15, 1 << 24}, {"read", 1 << 6, 1 << 24},  {"both", 1 << 15 | 1 << 6, 1 << 24},
    {"up", 2 << 13, 1 << 22},    {"down", 1 << 13, 2 << 22}, {"zero", 3 << 13, 3 << 22},
};

static void set(const float_mode *m)
{
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | (unsigned)m->x86);
#elif defined __aarch64__
    uint64_t was;
    __asm__ volatile("mrs %0, fpcr" : "=r"(was));
    __asm__ volatile("msr fpcr, %0" : : "r"(was | m->arm));
#else
    (void)m;
#endif
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("FLOAT_MODE"), *rank = getenv("FSDP_RUN");
    rank = rank ? rank : getenv("PMI_RANK");
    char name[8];
    int only = -1;
    if (!text || sscanf(text, "%7[a-z],%d", name, &only) < 1)
        return;
    if (only >= 0 && (!rank || atoi(rank) != only))
        return;
    for (unsigned i = 0; i < sizeof MODES / sizeof *MODES; i++)
        if (strcmp(name, MODES[i].name) == 0)
            set(&MODES[i]);
}
