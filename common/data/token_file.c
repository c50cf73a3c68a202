/* token_file.c -- check the header of a token file, which llm.c calls a shard: 256 int32 (magic
 * 20240520, version 1, number of tokens, zeros), then the uint16 tokens, all little-endian.
 * [llm.c dev/data/data_common.py]
 *
 * A file may come from anywhere, so nothing in it is trusted: every field is checked before use,
 * and files.c checks every token when the file is opened. */
#include "common/data/data_impl.h"

#include <fnmatch.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read in place");

enum {
    SHARD_MAGIC = 20240520,
    SHARD_VERSION = 1,
    LLAMA3_MAGIC = 20240801, /* llm.c's token files of uint32 tokens */
    TOKEN_BYTES = 2,
    FIELD_MAGIC = 0,
    FIELD_VERSION = 1,
    FIELD_N_TOKENS = 2
};

static int32_t header_field(const void *bytes, size_t field)
{
    int32_t value;
    memcpy(&value, (const char *)bytes + field * sizeof value, sizeof value);
    return value;
}

bool token_file_is(const char *path, const void *head, size_t file_bytes)
{
    if (fnmatch("*.bin", path, 0) == 0)
        return true;
    if (file_bytes < sizeof(int32_t))
        return false;
    int32_t magic = header_field(head, FIELD_MAGIC);
    return magic == SHARD_MAGIC || magic == LLAMA3_MAGIC;
}

static const char WRITE_HINT[] = "write it again with llm.c's dev/data scripts (GPT-2 tokens); a "
                                 "text file must not be named .bin";

fsdp_status token_file_check(const char *path, const void *head, size_t file_bytes,
                             size_t *n_tokens)
{
    if (file_bytes < SHARD_HEADER_BYTES)
        return fsdp_error(FSDP_EINVAL, WRITE_HINT,
                          "data: %s: header: got a file of %zu bytes, expected at least %d", path,
                          file_bytes, SHARD_HEADER_BYTES);
    int32_t magic = header_field(head, FIELD_MAGIC), version = header_field(head, FIELD_VERSION);
    if (magic == LLAMA3_MAGIC)
        return fsdp_error(FSDP_EINVAL, "make the shards with the GPT-2 tokenizer (uint16 tokens)",
                          "data: %s: magic: got %d (Llama-3 shards, uint32 tokens), expected %d",
                          path, magic, SHARD_MAGIC);
    if (magic != SHARD_MAGIC)
        return fsdp_error(FSDP_EINVAL, WRITE_HINT, "data: %s: magic: got %d, expected %d", path,
                          magic, SHARD_MAGIC);
    if (version != SHARD_VERSION)
        return fsdp_error(FSDP_EINVAL, WRITE_HINT, "data: %s: version: got %d, expected %d", path,
                          version, SHARD_VERSION);
    int32_t n = header_field(head, FIELD_N_TOKENS);
    if (n < 0)
        return fsdp_error(FSDP_EINVAL, WRITE_HINT,
                          "data: %s: number of tokens: got %d, expected 0 or more", path, n);
    size_t expected = SHARD_HEADER_BYTES + (size_t)n * TOKEN_BYTES;
    if (file_bytes != expected)
        return fsdp_error(FSDP_EINVAL, "the file was cut off or added to: copy it again",
                          "data: %s: length: got %zu bytes, expected %zu for the %d tokens of its "
                          "header",
                          path, file_bytes, expected, n);
    *n_tokens = (size_t)n;
    return FSDP_OK;
}
