/* old_manifest.c -- turns the manifest of a checkpoint into one of an older version, which did not
 * say how many samples the run had read, nor from which files.
 *
 *   old_manifest DIR/step-N */
#include <stdio.h>
#include "common/checkpoint/ckpt_manifest.h"

int main(int argc, char **argv)
{
    ckpt_manifest m = {0};
    fsdp_status status = argc == 2 ? ckpt_manifest_read(argv[1], &m) : FSDP_EINVAL;
    m.n_samples = -1;
    corpus_notes_free(&m.data);
    corpus_notes_free(&m.mask);
    if (status == FSDP_OK)
        status = ckpt_manifest_write(argv[1], &m);
    ckpt_manifest_free(&m);
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return status != FSDP_OK;
}
