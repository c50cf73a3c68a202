/* host_memory.c -- memory of the operating system: large mappings, and how much is available.
 *
 * Available memory is the least of four bounds: MemAvailable (the kernel's estimate of memory
 * without swapping), the memory cgroups that enclose the process (v2: memory.max, v1:
 * memory.limit_in_bytes), and the limits of the process (RLIMIT_AS, RLIMIT_DATA). A cgroup's use
 * includes file pages that the kernel drops if memory is short; inactive ones are counted as free,
 * like in MemAvailable. */
#include "common/base/dtype.h"
#include "common/device/device_impl.h"
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Map align_bytes more than needed, and unmap the excess before and after. */
void *host_map(size_t bytes, size_t align_bytes)
{
    char *base =
        mmap(NULL, bytes + align_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)base & (align_bytes - 1);
    size_t after = align_bytes - before;
    if (before > 0)
        munmap(base, before);
    munmap(base + before + bytes, after);
    madvise(base + before, bytes, MADV_HUGEPAGE); /* advice: a kernel without it may refuse */
    return base + before;
}

/* ---- small files ---------------------------------------------------------------------------- */
static FILE *open_at(const char *root, const char *dir, const char *file)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s/%s", root, dir, file);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* The number after `key` in a file of "key number" lines ("MemAvailable:  123 kB"), times unit. */
static bool read_key(const char *root, const char *dir, const char *file, const char *key,
                     size_t unit, size_t *value)
{
    FILE *f = open_at(root, dir, file);
    if (!f)
        return false;
    char line[256];
    bool found = false;
    size_t key_chars = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long number;
        if (strncmp(line, key, key_chars) == 0 && sscanf(line + key_chars, " %llu", &number) == 1 &&
            number <= SIZE_MAX / unit) {
            *value = (size_t)number * unit;
            found = true;
        }
    }
    fclose(f);
    return found;
}

static size_t minus(size_t limit, size_t used)
{
    return limit > used ? limit - used : 0;
}

/* ---- cgroups -------------------------------------------------------------------------------- */
typedef struct cgroup_files {
    const char *mount, *limit, *used, *inactive_key;
} cgroup_files;

static size_t cgroup_level_available(const char *root, const cgroup_files *v, const char *dir)
{
    size_t limit, used, inactive = 0;
    /* Both files hold only a number, or "max" (no limit), which is not read as one. */
    if (!read_key(root, dir, v->limit, "", 1, &limit) ||
        !read_key(root, dir, v->used, "", 1, &used))
        return SIZE_MAX;
    (void)read_key(root, dir, "memory.stat", v->inactive_key, 1, &inactive);
    return minus(limit, minus(used, inactive));
}

/* The least of the cgroup itself and all that enclose it. A container may see its own cgroup as the
 * mount's root although /proc/self/cgroup names the path outside; so missing levels are skipped. */
static size_t cgroup_available(const char *root, const cgroup_files *v, const char *path)
{
    char dir[PATH_MAX];
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", v->mount, path) >= sizeof dir)
        return SIZE_MAX;
    size_t available = SIZE_MAX;
    while (strlen(dir) > strlen(v->mount)) {
        available = min_size(available, cgroup_level_available(root, v, dir));
        *strrchr(dir, '/') = '\0';
    }
    return min_size(available, cgroup_level_available(root, v, v->mount));
}

/* Is "memory" one of the comma-separated names? */
static bool names_memory(const char *controllers)
{
    const char *at = strstr(controllers, "memory");
    return at && (at == controllers || at[-1] == ',') && (at[6] == ',' || at[6] == '\0');
}

/* Lines of /proc/self/cgroup: "0::/path" is v2, "4:cpu,memory:/path" is v1. */
static size_t cgroups_available(const char *root)
{
    static const cgroup_files V2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                    "inactive_file"};
    static const cgroup_files V1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                    "memory.usage_in_bytes", "total_inactive_file"};
    FILE *f = open_at(root, "/proc/self", "cgroup");
    if (!f)
        return SIZE_MAX;
    char line[PATH_MAX];
    size_t available = SIZE_MAX;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (*controllers == '\0')
            available = min_size(available, cgroup_available(root, &V2, path));
        else if (names_memory(controllers))
            available = min_size(available, cgroup_available(root, &V1, path));
    }
    fclose(f);
    return available;
}

/* ---- limits of the process ------------------------------------------------------------------ */
static size_t rlimit_available(const char *root, int resource, const char *used_key)
{
    struct rlimit limit;
    size_t used;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        !read_key(root, "/proc/self", "status", used_key, 1024, &used))
        return SIZE_MAX;
    return minus(limit.rlim_cur, used);
}

size_t host_mem_available(const char *root)
{
    size_t available = SIZE_MAX; /* stays so if /proc/meminfo cannot be read */
    (void)read_key(root, "/proc", "meminfo", "MemAvailable:", 1024, &available);
    available = min_size(available, cgroups_available(root));
    available = min_size(available, rlimit_available(root, RLIMIT_AS, "VmSize:"));
    return min_size(available, rlimit_available(root, RLIMIT_DATA, "VmData:"));
}
