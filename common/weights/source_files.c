/* source_files.c -- see source_files.h. */
#include "common/weights/source_files.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/read_file.h"
#include "common/weights/export.h"

static const char HINT[] = "make it readable, or move it out of the folder of --init-from";
/* Names of hidden and unfinished files, of config.json, and of weights with their indices. */
static const char LEFT_OUT[] =
    "@(.*|*.tmp|" EXPORT_CONFIG "|*.@(safetensors|bin|pt|pth|ckpt|h5|msgpack|gguf|ggml|onnx|"
    "onnx_data|ot|npz|npy|tflite)?(.index.json))";

static fsdp_status cannot_read(const char *path, const char *why)
{
    return fsdp_error(FSDP_EIO, HINT, "--init-from: %s: %s", path, why);
}

/* s->config = the whole file. */
static fsdp_status read_config(const char *dir, source_files *s)
{
    char path[IMPORT_PATH_ROOM];
    source_file f = {0};
    snprintf(path, sizeof path, "%s/" EXPORT_CONFIG, dir);
    const char *why = open_regular(path, &f.fd, &f.bytes);
    if (why == NULL) {
        s->config = calloc(1, f.bytes + 1);
        if (s->config == NULL || pread_all(f.fd, s->config, f.bytes, 0) != f.bytes)
            why = "no memory for it, or it became shorter";
        close(f.fd);
    }
    return why == NULL ? FSDP_OK : cannot_read(path, why);
}

/* Open dir/name if it is a regular file of a size to take over. */
static fsdp_status open_file(const char *dir, const char *name, source_files *s)
{
    char path[IMPORT_PATH_ROOM];
    struct stat st;
    source_file *f = &s->files[s->n_files];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (stat(path, &st) != 0)
        return cannot_read(path, strerror(errno));
    if (S_ISREG(st.st_mode) && st.st_size > SOURCE_FILE_MAX_BYTES)
        fprintf(stderr, "note: %s has more than 64 MiB: exports do not take it over\n", path);
    if (!S_ISREG(st.st_mode) || st.st_size > SOURCE_FILE_MAX_BYTES)
        return FSDP_OK;
    if (s->n_files == SOURCE_MAX_FILES)
        return fsdp_error(FSDP_EINVAL, "move the files of the model to a folder of their own",
                          "--init-from: %s: got more than 256 files to take over", dir);
    const char *why = open_regular(path, &f->fd, &f->bytes);
    if (why != NULL)
        return cannot_read(path, why);
    snprintf(f->name, sizeof f->name, "%s", name);
    s->n_files++;
    return FSDP_OK;
}

fsdp_status source_files_open(const char *dir, source_files *s)
{
    *s = (source_files){0};
    DIR *d = opendir(dir);
    fsdp_status status = d == NULL ? cannot_read(dir, strerror(errno)) : read_config(dir, s);
    for (const struct dirent *e; status == FSDP_OK && (e = readdir(d)) != NULL;)
        if (fnmatch(LEFT_OUT, e->d_name, FNM_EXTMATCH) != 0)
            status = open_file(dir, e->d_name, s);
    if (d != NULL)
        closedir(d);
    if (status != FSDP_OK)
        source_files_close(s);
    return status;
}

void source_files_close(source_files *s)
{
    for (int i = 0; i < s->n_files; i++)
        close(s->files[i].fd);
    free(s->config);
    *s = (source_files){0};
}
