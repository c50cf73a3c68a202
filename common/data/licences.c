/* licences.c -- open the default corpus: the licence texts that every Debian system has. */
#include "common/data/data_impl.h"

#include <stdio.h>

/* The joined texts of Debian 12 (base-files 12.4). */
static const uint64_t BOOKWORM_HASH = 0x86b48185d2391c6f;

static const char DIFFERS[] = "the licence texts of this system differ from Debian 12's, so losses "
                              "differ from those in the documentation";

fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note)
{
    const corpus_request request = {
        .format = CORPUS_BYTES, .vocab_limit = BYTE_VOCAB, .no_links = true};
    *note = "";
    fsdp_status status = corpus_begin(out, dir, &request);
    if (status == FSDP_OK)
        status = corpus_add_dir(out, dir, &request);
    if (status == FSDP_EIO && out->n_files == 0)
        status =
            fsdp_error(FSDP_EIO, "pass --data FILE with any text file",
                       "data: the default corpus is not there: %.400s", fsdp_error_get()->what);
    if (status == FSDP_OK)
        status = corpus_check_length(out, seq_len);
    if (status != FSDP_OK)
        corpus_close(out);
    else if (corpus_hash(out) != BOOKWORM_HASH)
        *note = DIFFERS;
    return status;
}
