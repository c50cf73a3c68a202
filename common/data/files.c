/* files.c -- the memory that holds a corpus, and the files that are read into it. */
#include "common/data/data_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- memory ---------------------------------------------------------------------------------- */

fsdp_status corpus_reserve(corpus *c, size_t bytes)
{
    void *tokens = realloc(c->tokens, bytes);
    if (tokens == NULL)
        return fsdp_error(FSDP_ENOMEM, "use a smaller corpus", "data: %s: no memory for %zu bytes",
                          c->source, bytes);
    c->tokens = tokens;
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
    return read_all(fd, path, (char *)c->tokens + used, *file_bytes);
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

/* ---- several files --------------------------------------------------------------------------- */

static fsdp_status add_file(const char *path, corpus *c)
{
    size_t file_bytes;
    TRY(file_append(path, c, &file_bytes));
    if (c->token_bytes == 2)
        return token_file_take(path, file_bytes, c);
    c->n_tokens += file_bytes;
    return FSDP_OK;
}

static fsdp_status add_entry(const char *dir, const char *name, corpus *c)
{
    const bool texts = c->token_bytes == 1;
    fsdp_status status = FSDP_OK;
    struct stat st;
    char *path;
    if (!texts && fnmatch("*.bin", name, 0) != 0)
        return FSDP_OK;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return fsdp_error(FSDP_ENOMEM, "", "data: no host memory for file names");
    if ((texts ? lstat(path, &st) : stat(path, &st)) == 0 && S_ISREG(st.st_mode))
        status = add_file(path, c);
    free(path);
    return status;
}

fsdp_status corpus_add_dir(const char *dir, corpus *c)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    const int n = scandir(dir, &entries, NULL, alphasort); /* strcmp's order: no locale is set */
    if (n < 0)
        return fsdp_error(FSDP_EIO, "pass --data with a text file or llm.c shards", "data: %s: %s",
                          dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == FSDP_OK)
            status = add_entry(dir, entries[i]->d_name, c);
        free(entries[i]);
    }
    free(entries);
    return status;
}

fsdp_status corpus_add_glob(const char *pattern, corpus *c)
{
    glob_t g;
    fsdp_status status = FSDP_OK;
    int rc = glob(pattern, 0, NULL, &g); /* sorted, as above */
    if (rc == GLOB_NOSPACE)
        return fsdp_error(FSDP_ENOMEM, "", "data: %s: no host memory", pattern);
    if (rc != 0)
        return fsdp_error(FSDP_EIO, "check the pattern given to --data (quote it from the shell)",
                          "data: %s: no file matches", pattern);
    for (size_t i = 0; i < g.gl_pathc && status == FSDP_OK; i++)
        status = add_file(g.gl_pathv[i], c);
    globfree(&g);
    return status;
}
