/* licences.c -- open the default corpus: the licence texts that every Debian system has. */
#include "common/data/data_impl.h"

#include <stdio.h>

/* The joined texts of Debian 12 (base-files 12.4). */
static const uint64_t BOOKWORM_HASH = 0x86b48185d2391c6f;

static const char DIFFERS[] = "the licence texts of this system differ from Debian 12's, so losses "
                              "differ from those in the documentation";

fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note)
{
    const corpus_request request = {.path = dir,
                                    .format = CORPUS_BYTES,
                                    .vocab_limit = BYTE_VOCAB,
                                    .seq_len = seq_len,
                                    .no_links = true};
    const fsdp_status status = corpus_open_file(&request, out);
    *note = status == FSDP_OK && corpus_hash(out) != BOOKWORM_HASH ? DIFFERS : "";
    if (status != FSDP_EIO)
        return status;
    return fsdp_error(FSDP_EIO, "pass --data FILE with any text file",
                      "data: the default corpus is not there: %.400s", fsdp_error_get()->what);
}
