/* old_manifest.c -- turns the manifest of a checkpoint into one of an older version, which did not
 * say how many samples the run had read, nor from which files; or, with the paths of the files,
 * into one that was saved after their last change. A path where nothing is: it does not say when.
 *
 *   old_manifest DIR/step-N [FILE ...] */
#include <stdio.h>
#include <sys/stat.h>
#include "common/checkpoint/ckpt_manifest.h"

int main(int argc, char **argv)
{
    ckpt_manifest m = {0};
    fsdp_status status = argc > 1 ? ckpt_manifest_read(argv[1], &m) : FSDP_EINVAL;
    for (size_t i = 0; i < m.data.n_files && argc == 2 + (int)m.data.n_files; i++) {
        struct stat st = {0};
        (void)!stat(argv[2 + i], &st);
        m.data.files[i].ctime_ns = (uint64_t)(st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec);
    }
    if (argc == 2) {
        m.n_samples = -1;
        corpus_notes_free(&m.data);
        corpus_notes_free(&m.mask);
    }
    if (status == FSDP_OK)
        status = ckpt_manifest_write(argv[1], &m);
    ckpt_manifest_free(&m);
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return status != FSDP_OK;
}
