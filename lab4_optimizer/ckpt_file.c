/* ckpt_file.c -- provided: sharded checkpoints on disk, around task 4.5's pack and unpack.
 *
 *   DIR/rank-00000.ckpt ...  one file for each rank that saved: header, pieces, the values of
 *                            parameter, first and second moment in the order of the pieces, and a
 *                            hash of everything before it
 *   DIR/meta.json            written last: step, number of files, arrays per parameter, sizes
 *
 * A save fills DIR.tmp, syncs it, and swaps it with DIR by renames, so DIR is always a whole
 * checkpoint. An interrupted swap leaves the old one as DIR.old, which loading falls back to. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lab4_optimizer/ckpt_file.h"

/* ---- one file -------------------------------------------------------------------------------- */

static const char CKPT_MAGIC[8] = "FSDPCKP2";

uint64_t ckpt_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    /* One float a word: a file's values are written unit by unit, but read in one piece. */
    for (; bytes >= 4; bytes -= 4, p += 4) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, p++)
        hash = (hash ^ *p) * 0x100000001B3u;
    return hash;
}

static fsdp_status write_all(ckpt_file *f, const void *data, size_t bytes)
{
    f->hash = ckpt_hash(f->hash, data, bytes);
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = write(f->fd, p, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdp_error(FSDP_EIO, "free some space, or pass another --save directory",
                              "checkpoint: write to %s: %s", f->path, strerror(errno));
        p += n;
        bytes -= (size_t)n;
    }
    return FSDP_OK;
}

static fsdp_status read_all(ckpt_file *f, void *data, size_t bytes)
{
    char *p = data;
    size_t left = bytes;
    while (left > 0) {
        ssize_t n = read(f->fd, p, left < (1u << 30) ? left : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdp_error(FSDP_EIO, "resume from another checkpoint",
                              "checkpoint: %s is cut short: %s", f->path,
                              n < 0 ? strerror(errno) : "end of file");
        p += n;
        left -= (size_t)n;
    }
    f->hash = ckpt_hash(f->hash, data, bytes);
    return FSDP_OK;
}

fsdp_status ckpt_file_write_begin(const char *dir, int rank, const ckpt_header *header,
                                  const ckpt_piece *pieces, ckpt_file *f)
{
    *f = (ckpt_file){.fd = -1};
    snprintf(f->path, sizeof f->path, "%s/rank-%05d.ckpt", dir, rank);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return fsdp_error(FSDP_EIO, "pass a writable --save directory", "checkpoint: create %s: %s",
                          f->path, strerror(errno));
    ckpt_header h = *header;
    memcpy(h.magic, CKPT_MAGIC, sizeof h.magic);
    TRY(write_all(f, &h, sizeof h));
    return write_all(f, pieces, (size_t)h.n_pieces * sizeof *pieces);
}

fsdp_status ckpt_file_write(ckpt_file *f, const float *values, size_t elems)
{
    return write_all(f, values, elems * sizeof *values);
}

fsdp_status ckpt_file_write_end(ckpt_file *f)
{
    uint64_t hash = f->hash;
    TRY(write_all(f, &hash, sizeof hash));
    if (fsync(f->fd) != 0)
        return fsdp_error(FSDP_EIO, "check the disk", "checkpoint: fsync %s: %s", f->path,
                          strerror(errno));
    return FSDP_OK;
}

void ckpt_file_close(ckpt_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

fsdp_status ckpt_file_open(const char *dir, int file, ckpt_header *header, ckpt_piece **pieces,
                           ckpt_file *f)
{
    *f = (ckpt_file){.fd = -1};
    *pieces = NULL;
    snprintf(f->path, sizeof f->path, "%s/rank-%05d.ckpt", dir, file);
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return fsdp_error(FSDP_EIO, "resume from another checkpoint", "checkpoint: open %s: %s",
                          f->path, strerror(errno));
    TRY(read_all(f, header, sizeof *header));
    uint64_t size = (uint64_t)st.st_size, n = header->n_pieces, v = header->n_values;
    if (memcmp(header->magic, CKPT_MAGIC, sizeof CKPT_MAGIC) != 0 || n > size / sizeof **pieces ||
        v > size / sizeof(float) || header->n_arrays < 1 || header->n_arrays > 3 ||
        size != sizeof *header + n * sizeof **pieces + v * header->n_arrays * sizeof(float) + 8)
        return fsdp_error(
            FSDP_EINVAL, "resume from another checkpoint",
            "checkpoint: %s is damaged: its header promises %llu pieces and %llu values, "
            "its length is %llu bytes",
            f->path, (unsigned long long)n, (unsigned long long)v, (unsigned long long)size);
    if (header->file != (uint64_t)file)
        return fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                          "checkpoint: %s: got file number %llu, expected %d", f->path,
                          (unsigned long long)header->file, file);
    *pieces = malloc(n * sizeof **pieces + 1);
    if (!*pieces)
        return fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory");
    TRY(read_all(f, *pieces, n * sizeof **pieces));
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n && sum <= v; i++)
        sum = (*pieces)[i].elems > v ? v + 1 : sum + (*pieces)[i].elems; /* cannot wrap around */
    if (sum != v)
        return fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                          "checkpoint: %s is damaged: pieces of %llu elements, %llu values",
                          f->path, (unsigned long long)sum, (unsigned long long)v);
    return FSDP_OK;
}

fsdp_status ckpt_file_read(ckpt_file *f, float *values, size_t elems)
{
    return read_all(f, values, elems * sizeof *values);
}

fsdp_status ckpt_file_read_end(ckpt_file *f)
{
    uint64_t want = f->hash, got;
    TRY(read_all(f, &got, sizeof got));
    if (got != want)
        return fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                          "checkpoint: %s is damaged: hash %016llx, expected %016llx", f->path,
                          (unsigned long long)got, (unsigned long long)want);
    return FSDP_OK;
}

/* ---- meta.json ------------------------------------------------------------------------------- */

fsdp_status ckpt_meta_write(const char *dir, const ckpt_meta *meta)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/meta.json", dir);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "format", "fsdp-labs-checkpoint-1");
    cJSON_AddNumberToObject(j, "next_step", (double)meta->next_step);
    cJSON_AddNumberToObject(j, "n_files", meta->n_files);
    cJSON_AddNumberToObject(j, "n_params", meta->n_params);
    cJSON_AddNumberToObject(j, "param_elems", (double)meta->param_elems);
    cJSON_AddNumberToObject(j, "arrays_per_param", meta->n_arrays);
    char *text = cJSON_Print(j);
    cJSON_Delete(j);
    if (!text)
        return fsdp_error(FSDP_ENOMEM, "", "checkpoint: no host memory for %s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    size_t bytes = strlen(text);
    bool ok = fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes && fsync(fd) == 0;
    int saved_errno = errno;
    if (fd >= 0)
        close(fd);
    cJSON_free(text);
    if (!ok)
        return fsdp_error(FSDP_EIO, "pass a writable --save directory", "checkpoint: write %s: %s",
                          path, strerror(saved_errno));
    return FSDP_OK;
}

/* A whole number from least to most, or -1 for anything else. */
static int64_t json_count(const cJSON *j, const char *key, double least, double most)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, key);
    double x = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    return x >= least && x <= most && x == (double)(int64_t)x ? (int64_t)x : -1;
}

fsdp_status ckpt_meta_read(const char *dir, ckpt_meta *meta)
{
    char path[PATH_MAX], text[8192];
    snprintf(path, sizeof path, "%s/meta.json", dir);
    FILE *in = fopen(path, "rb");
    if (!in)
        return fsdp_error(FSDP_EIO, "pass a directory that --save wrote", "checkpoint: open %s: %s",
                          path, strerror(errno));
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = 0;
    cJSON *j = cJSON_Parse(text);
    const double exact = 0x1p53; /* doubles hold all whole numbers up to it */
    *meta = (ckpt_meta){.next_step = json_count(j, "next_step", 0, exact),
                        .n_files = (int)json_count(j, "n_files", 1, 99999), /* rank-RRRRR */
                        .n_params = (int)json_count(j, "n_params", 1, INT_MAX),
                        .param_elems = json_count(j, "param_elems", 1, exact),
                        .n_arrays = (int)json_count(j, "arrays_per_param", 1, 3)};
    cJSON_Delete(j);
    if (meta->next_step < 0 || meta->n_files < 1 || meta->n_params < 1 || meta->param_elems < 1 ||
        (meta->n_arrays != 1 && meta->n_arrays != 3))
        return fsdp_error(FSDP_EINVAL, "resume from another checkpoint",
                          "checkpoint: %s is damaged or of another format", path);
    return FSDP_OK;
}

/* ---- directories ----------------------------------------------------------------------------- */

fsdp_status ckpt_sibling(const char *dir, const char *suffix, char out[PATH_MAX])
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n + strlen(suffix) + 32 >= PATH_MAX) /* "/rank-00000.ckpt" */
        return fsdp_error(FSDP_EINVAL, "pass a shorter path",
                          "checkpoint: path of %zu bytes is too long", n);
    snprintf(out, PATH_MAX, "%.*s%s", (int)n, dir, suffix);
    return FSDP_OK;
}

static bool is_checkpoint_file(const char *name)
{
    int end = 0;
    return strcmp(name, "meta.json") == 0 ||
           (sscanf(name, "rank-%*5d.ckpt%n", &end) == 0 && end > 0 && name[end] == 0);
}

/* Removes more than this run would write: a killed run with more ranks may have left more files. */
fsdp_status ckpt_remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (is_checkpoint_file(e->d_name))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    if (rmdir(dir) != 0 && errno != ENOENT)
        return fsdp_error(FSDP_EIO, "remove it by hand", "checkpoint: remove %s: %s", dir,
                          strerror(errno));
    return FSDP_OK;
}

/* A rename survives a crash only when the directory that holds the name is on disk. */
static fsdp_status sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: a file system that cannot sync a directory */
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    int why = errno;
    if (fd >= 0)
        close(fd);
    return ok ? FSDP_OK
              : fsdp_error(FSDP_EIO, "check the disk", "checkpoint: fsync %s: %s", dir,
                           strerror(why));
}

/* An old DIR is moved aside first and removed last. If DIR itself is whole, a DIR.old that a killed
 * run left is removed before that. */
fsdp_status ckpt_publish_dir(const char *dir)
{
    char tmp[PATH_MAX], old[PATH_MAX], now[PATH_MAX], parent[PATH_MAX];
    TRY(ckpt_sibling(dir, ".tmp", tmp));
    TRY(ckpt_sibling(dir, ".old", old));
    TRY(ckpt_sibling(dir, "", now));
    snprintf(parent, sizeof parent, "%s", now);
    const char *holder = dirname(parent);
    ckpt_meta meta;
    TRY(sync_dir(tmp));
    if (ckpt_meta_read(now, &meta) == FSDP_OK) {
        TRY(ckpt_remove_dir(old));
        if (rename(now, old) != 0)
            return fsdp_error(FSDP_EIO, "pass another --save directory",
                              "checkpoint: rename %s: %s", now, strerror(errno));
    }
    if (rename(tmp, now) != 0)
        return fsdp_error(FSDP_EIO, "pass an empty or new --save directory",
                          "checkpoint: rename %s to %s: %s", tmp, now, strerror(errno));
    TRY(sync_dir(holder)); /* remove the old one only when the new one is sure to stay */
    return ckpt_remove_dir(old);
}
