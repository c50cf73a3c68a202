/* page.c -- see page.h. */
#include "common/base/page.h"
#include <errno.h>

const char *page_hint(int err, const char *otherwise)
{
    switch (err) {
    case EINVAL:
        return "use a kernel whose pages (getconf PAGESIZE) have at most 65536 bytes";
    case EFBIG:
        return "remove the limit on file sizes (ulimit -f)";
    case EMFILE:
    case ENFILE:
        return "raise the limit on open files (ulimit -n)";
    case EACCES:
    case EPERM:
    case ENOSYS:
        return "allow memfd_create: see sysctl vm.memfd_noexec and the container's seccomp profile";
    default:
        return otherwise;
    }
}
