/* fuzz_lib.c -- see fuzz_lib.h. */
#include "tests/cli/fuzz_lib.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { TRY_SECONDS = 20, GROWTH_BYTES = 4096 };

static void die(const char *what)
{
    perror(what);
    exit(2);
}

/* ---- random numbers: splitmix64 -------------------------------------------------------------- */

uint64_t fuzz_next(fuzz *f)
{
    uint64_t z = f->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

size_t fuzz_below(fuzz *f, size_t n)
{
    return n ? (size_t)(fuzz_next(f) % n) : 0;
}

bool fuzz_chance(fuzz *f, int percent)
{
    return fuzz_below(f, 100) < (size_t)percent;
}

/* ---- groups and tries ------------------------------------------------------------------------ */

static int count_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static bool maps_files_of(const char *dir)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, dir) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

void fuzz_open(fuzz *f, int argc, char **argv, long default_tries)
{
    *f = (fuzz){.tries = argc > 1 ? atol(argv[1]) : default_tries,
                .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1,
                .first_try = argc > 3 ? atol(argv[3]) : 0};
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.200s/fsdp-fuzz.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(f->dir))
        die(f->dir);
    f->report = fdopen(dup(STDOUT_FILENO), "w");
    if (!f->report || !freopen("/dev/null", "w", stdout))
        die("/dev/null");
    setvbuf(f->report, NULL, _IOLBF, 0);
}

static void end_group(fuzz *f)
{
    if (!f->group)
        return;
    if (!f->failed)
        fprintf(f->report, "PASS %s (%ld tries, seed %llu)\n", f->group, f->tries,
                (unsigned long long)f->seed);
    f->n_passed += !f->failed;
    f->n_failed += f->failed;
}

void fuzz_group(fuzz *f, const char *name)
{
    end_group(f);
    f->group = name;
    f->failed = false;
    f->fds = count_fds();
}

/* Ends a try that computes for ever. The time limit of fuzz.sh ends one that sleeps. */
static void limit_cpu(long seconds)
{
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = seconds}}, NULL);
}

void fuzz_try(fuzz *f, long number)
{
    f->at = number;
    f->state = f->seed * 0xD1342543DE82EF95u + (uint64_t)number * 0x2545F4914F6CDD1Du;
    for (const char *c = f->group; *c; c++)
        f->state = (f->state ^ (unsigned char)*c) * 0x100000001B3u;
    f->input[0] = '\0';
    limit_cpu(TRY_SECONDS);
}

int fuzz_close(fuzz *f)
{
    end_group(f);
    limit_cpu(0);
    char command[sizeof f->dir + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    if (system(command) != 0)
        perror(command);
    fprintf(f->report, "%d passed, %d failed\n", f->n_passed, f->n_failed);
    fclose(f->report);
    return f->n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- what must hold -------------------------------------------------------------------------- */

void fuzz_expect(fuzz *f, bool ok, const char *what)
{
    if (ok || f->failed)
        return;
    f->failed = true;
    fprintf(f->report,
            "FAIL %s: not so: %s\n     try %ld of seed %llu; input: %s\n     last message: %s\n",
            f->group, what, f->at, (unsigned long long)f->seed, f->input, fsdp_error_get()->what);
}

void fuzz_expect_error(fuzz *f, fsdp_status status)
{
    const fsdp_error_info *e = fsdp_error_get();
    FUZZ_EXPECT(f, status == FSDP_EINVAL || status == FSDP_EIO || status == FSDP_ENOMEM ||
                       status == FSDP_ESKIP);
    FUZZ_EXPECT(f, e->status == status);
    FUZZ_EXPECT(f, e->what[0] != '\0');
    FUZZ_EXPECT(f, e->hint[0] != '\0' || status == FSDP_ENOMEM); /* the program adds one */
}

void fuzz_expect_no_leak(fuzz *f)
{
    FUZZ_EXPECT(f, count_fds() == f->fds);
    FUZZ_EXPECT(f, !maps_files_of(f->dir));
}

/* ---- files in memory ------------------------------------------------------------------------- */

blob blob_of(const void *bytes, size_t n)
{
    blob b = {.n = n, .capacity = 2 * n + GROWTH_BYTES};
    if (!(b.bytes = malloc(b.capacity)))
        die("blob");
    if (n > 0)
        memcpy(b.bytes, bytes, n);
    return b;
}

blob blob_read(const char *path)
{
    FILE *in = fopen(path, "rbe");
    if (!in)
        die(path);
    fseek(in, 0, SEEK_END);
    size_t n = (size_t)ftell(in);
    rewind(in);
    blob b = blob_of(NULL, 0);
    b.capacity = 2 * n + GROWTH_BYTES;
    if (!(b.bytes = realloc(b.bytes, b.capacity)) || fread(b.bytes, 1, n, in) != n)
        die(path);
    b.n = n;
    fclose(in);
    return b;
}

void blob_write(const blob *b, const char *path)
{
    FILE *out = fopen(path, "wbe");
    if (!out || fwrite(b->bytes, 1, b->n, out) != b->n || fclose(out) != 0)
        die(path);
}

void blob_free(blob *b)
{
    free(b->bytes);
    *b = (blob){0};
}

/* Numbers at which sizes, signs and products overflow or go wrong. */
static uint64_t edge_value(fuzz *f)
{
    static const uint64_t EDGES[] = {0,           1,          2,          0x7f,
                                     0xff,        0x7fff,     0xffff,     0x7fffffff,
                                     0x80000000u, 0xffffffff, 1ull << 32, 1ull << 53,
                                     INT64_MAX,   UINT64_MAX, 1ull << 62, 1ull << 63};
    uint64_t v = EDGES[fuzz_below(f, sizeof EDGES / sizeof *EDGES)];
    return v + fuzz_below(f, 3) - 1;
}

static void overwrite(blob *b, size_t at, const void *from, size_t n)
{
    size_t room = b->n - at;
    memcpy(b->bytes + at, from, n < room ? n : room);
}

static void mutate_once(fuzz *f, blob *b)
{
    static const char TEXT[] = "\"[]{}:,-+.eE0123456789 \\\n\377";
    /* the beginning, which has the headers, is chosen twice as often as the rest */
    size_t at = fuzz_chance(f, 50) ? fuzz_below(f, b->n < 128 ? b->n : 128) : fuzz_below(f, b->n);
    uint64_t edge = edge_value(f);
    size_t n = fuzz_below(f, 64) + 1;
    switch (fuzz_below(f, 8)) {
    case 0:
        b->bytes[at] ^= (unsigned char)(1u << fuzz_below(f, 8));
        break;
    case 1:
        b->bytes[at] = (unsigned char)TEXT[fuzz_below(f, sizeof TEXT - 1)];
        break;
    case 2:
        overwrite(b, at & ~(size_t)3, &edge, 4);
        break;
    case 3:
        overwrite(b, at & ~(size_t)7, &edge, 8);
        break;
    case 4:
        memset(b->bytes + at, (int)fuzz_below(f, 256), n < b->n - at ? n : b->n - at);
        break;
    case 5: /* bytes copied from elsewhere, so keys and fields appear twice */
        n = n < b->n - at ? n : b->n - at;
        memmove(b->bytes + at, b->bytes + fuzz_below(f, b->n - n + 1), n);
        break;
    case 6:
        b->n = fuzz_chance(f, 50) ? at : b->n - (n < b->n ? n : b->n);
        break;
    default: /* the file grows */
        n = n < b->capacity - b->n ? n : b->capacity - b->n;
        memset(b->bytes + b->n, (int)fuzz_below(f, 256), n);
        b->n += n;
    }
}

void blob_mutate(fuzz *f, blob *b)
{
    for (size_t changes = fuzz_below(f, 4) + 1; changes > 0 && b->n > 0; changes--)
        mutate_once(f, b);
}

blob blob_damaged(fuzz *f, const blob *from, const char *path)
{
    blob b = blob_of(from->bytes, from->n);
    blob_mutate(f, &b);
    blob_write(&b, path);
    snprintf(f->input, sizeof f->input, "%.*s", (int)(b.n < 1500 ? b.n : 1500),
             (const char *)b.bytes);
    return b;
}

void blob_end(fuzz *f, blob *b)
{
    blob_free(b);
    fuzz_expect_no_leak(f);
}
