/* licences.c -- the default corpus: the licence texts that every Debian system carries. */
#include "common/base/hash.h"
#include "common/data/data_impl.h"

#include <stdio.h>

static const char LICENCE_DIR[] = "/usr/share/common-licenses";

/* The joined texts of Debian 12 (base-files 12.4): bytes and FNV-1a hash. */
static const size_t BOOKWORM_BYTES = 237320;
static const uint64_t BOOKWORM_HASH = 0xfe680f168f8bdd96;

static const char DIFFERS[] = "the licence texts of this system differ from Debian 12's, so losses "
                              "differ from those in the documentation";

fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note)
{
    *out = (corpus){0};
    *note = "";
    snprintf(out->source, sizeof out->source, "%s", dir);
    path_list list;
    if (path_list_dir(dir, "", true, &list) != FSDP_OK)
        return fsdp_error(FSDP_EIO, "pass --data FILE with any text file",
                          "data: the default corpus is not there: %.400s", fsdp_error_get()->what);
    fsdp_status status = corpus_add_files(&list, 1, BYTE_VOCAB, out);
    path_list_free(&list);
    if (status == FSDP_OK)
        status = corpus_check_length(out, seq_len);
    if (status != FSDP_OK) {
        corpus_close(out);
        return status;
    }
    if (out->n_tokens != BOOKWORM_BYTES || hash_bytes(out->tokens, out->n_tokens) != BOOKWORM_HASH)
        *note = DIFFERS;
    return FSDP_OK;
}

fsdp_status corpus_open_default(size_t seq_len, corpus *out, const char **note)
{
    return corpus_open_texts(LICENCE_DIR, seq_len, out, note);
}
