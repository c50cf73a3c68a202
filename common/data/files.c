/* files.c -- the memory that holds a corpus, and sorted lists of files. */
#include "common/data/data_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- memory ---------------------------------------------------------------------------------- */

fsdp_status corpus_reserve(corpus *c, size_t bytes)
{
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (bytes <= c->mapping_bytes)
        return FSDP_OK;
    void *map = c->mapping == NULL ? mmap(NULL, bytes, prot, flags, -1, 0)
                                   : mremap(c->mapping, c->mapping_bytes, bytes, MREMAP_MAYMOVE);
    if (map == MAP_FAILED)
        return fsdp_error(FSDP_ENOMEM, "use a smaller corpus", "data: %s: no memory for %zu bytes",
                          c->source, bytes);
    c->mapping = map;
    c->mapping_bytes = bytes;
    return FSDP_OK;
}

static fsdp_status read_all(int fd, const char *path, char *to, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = read(fd, to, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdp_error(FSDP_EIO, "wait until it is written", "data: %s: %s", path,
                              n < 0 ? strerror(errno) : "was shortened while it was read");
        to += n;
        bytes -= (size_t)n;
    }
    return FSDP_OK;
}

static fsdp_status append_descriptor(int fd, const char *path, corpus *c, size_t *file_bytes)
{
    struct stat st;
    const size_t used = c->n_tokens * (size_t)c->token_bytes;
    if (fstat(fd, &st) != 0)
        return fsdp_error(FSDP_EIO, "", "data: %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fsdp_error(FSDP_EIO, "pass --data with a regular file, a directory or a glob",
                          "data: %s: not a regular file", path);
    *file_bytes = (size_t)st.st_size;
    TRY(corpus_reserve(c, used + *file_bytes + 1)); /* an empty file has an address too */
    return read_all(fd, path, (char *)c->mapping + used, *file_bytes);
}

fsdp_status file_append(const char *path, corpus *c, size_t *file_bytes)
{
    /* O_NONBLOCK: a FIFO without a writer is refused instead of waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fsdp_error(FSDP_EIO, "check the path given to --data", "data: %s: %s", path,
                          strerror(errno));
    fsdp_status status = append_descriptor(fd, path, c, file_bytes);
    close(fd);
    return status;
}

/* ---- lists ---------------------------------------------------------------------------------- */

static fsdp_status path_list_add(path_list *l, const char *dir, const char *name)
{
    char **paths = realloc(l->paths, (l->n + 1) * sizeof *paths);
    if (paths != NULL)
        l->paths = paths;
    if (paths == NULL || asprintf(&paths[l->n], "%s%s%s", dir, *dir ? "/" : "", name) < 0)
        return fsdp_error(FSDP_ENOMEM, "", "data: no host memory for file names");
    l->n++;
    return FSDP_OK;
}

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

static bool is_regular(const char *path, bool skip_links)
{
    struct stat st;
    return (skip_links ? lstat(path, &st) : stat(path, &st)) == 0 && S_ISREG(st.st_mode);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

fsdp_status path_list_dir(const char *dir, const char *suffix, bool skip_links, path_list *out)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    *out = (path_list){0};
    const int n = scandir(dir, &entries, NULL, by_name);
    if (n < 0)
        return fsdp_error(FSDP_EIO, "pass --data with a text file or llm.c shards", "data: %s: %s",
                          dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == FSDP_OK && ends_in(entries[i]->d_name, suffix)) {
            status = path_list_add(out, dir, entries[i]->d_name);
            if (status == FSDP_OK && !is_regular(out->paths[out->n - 1], skip_links))
                free(out->paths[--out->n]);
        }
        free(entries[i]);
    }
    free(entries);
    if (status != FSDP_OK)
        path_list_free(out);
    return status;
}

fsdp_status path_list_glob(const char *pattern, path_list *out)
{
    *out = (path_list){0};
    glob_t g;
    int rc = glob(pattern, 0, NULL, &g); /* sorted; the programs set no locale */
    if (rc == GLOB_NOSPACE)
        return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", pattern);
    if (rc != 0)
        return fsdp_error(FSDP_EIO, "check the pattern given to --data (quote it from the shell)",
                          "data: %s: no file matches", pattern);
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        status = path_list_add(out, "", g.gl_pathv[i]);
    globfree(&g);
    if (status != FSDP_OK)
        path_list_free(out);
    return status;
}

void path_list_free(path_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->paths[i]);
    free(l->paths);
    *l = (path_list){0};
}
