/* uncaught.c -- see uncaught.h. */
#include "trainer/uncaught.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/comm/comm.h"

typedef void (*terminate_fn)(void);

/* The type of the exception in C++'s mangled form. By the ABI of C++ (Itanium), a std::type_info
 * is a table of functions and this name. */
static const char *thrown(void)
{
    const char *const *(*type)(void) =
        (const char *const *(*)(void))dlsym(RTLD_DEFAULT, "__cxa_current_exception_type");
    const char *const *info = type != NULL ? type() : NULL;
    return info != NULL ? info[1] : "an exception";
}

/* Neither exit() nor abort(): the library may be in the middle of its work, holding locks. */
static void report(void)
{
    (void)fsdp_error(FSDP_ENOMEM,
                     "free memory, raise its limits (ulimit -v, -d), or pass --ops portable",
                     "a C++ library (oneDNN) threw %s", thrown());
    fsdp_error_print(stderr, comm_launched_rank(), comm_launched_ranks());
    _exit(EXIT_FAILURE);
}

void uncaught_report(void)
{
    terminate_fn (*set)(terminate_fn) = /* std::set_terminate */
        (terminate_fn(*)(terminate_fn))dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE");
    if (set != NULL)
        (void)set(report);
}
