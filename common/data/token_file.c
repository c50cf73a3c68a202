/* token_file.c -- which tokens the bytes of a file are: a text's bytes, llm.c's shards, or tokens
 * without a header.
 *
 * A shard has a header of 256 int32 (magic, version, number of tokens, zeros), then its tokens, all
 * little-endian. [llm.c dev/data/data_common.py] A file may come from anywhere, so nothing in it is
 * trusted: every field is checked before use, and files.c checks every token. */
#include "common/data/data_impl.h"

#include <fnmatch.h>
#include <string.h>
#include "common/base/glob_in.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read in place");

/* llm.c's two kinds of shards. */
static const struct shard_kind {
    int32_t magic, version;
    int token_bytes;
} KINDS[] = {{20240520, 1, 2}, {20240801, 7, 4} /* Llama 3's tokens */};

enum { N_KINDS = sizeof KINDS / sizeof *KINDS };
enum { FIELD_MAGIC, FIELD_VERSION, FIELD_N_TOKENS };

static const struct shard_kind *shard_kind_of(const int32_t *head, size_t head_bytes)
{
    for (int i = 0; i < N_KINDS && head_bytes >= sizeof(int32_t); i++)
        if (head[FIELD_MAGIC] == KINDS[i].magic)
            return &KINDS[i];
    return NULL;
}

static const char SHARD_HINT[] =
    "pass --data-format uint16 or uint32 for tokens without a header, or bytes for a text";

/* Check header and length of a shard. */
static fsdp_status check_shard(const char *path, const int32_t *head, size_t head_bytes,
                               size_t file_bytes, corpus_file *f, int *token_bytes)
{
    const struct shard_kind *kind = shard_kind_of(head, head_bytes);
    if (kind == NULL && file_bytes >= sizeof(int32_t))
        return fsdp_error(FSDP_EINVAL, SHARD_HINT,
                          "data: %s: magic: got %d, expected %d or %d of llm.c's shards", path,
                          head[FIELD_MAGIC], KINDS[0].magic, KINDS[1].magic);
    if (file_bytes < SHARD_HEADER_BYTES)
        return fsdp_error(FSDP_EINVAL, "the shard was cut off: copy it again",
                          "data: %s: header: got a file of %zu bytes, expected at least %d", path,
                          file_bytes, SHARD_HEADER_BYTES);
    const int32_t version = head[FIELD_VERSION], n = head[FIELD_N_TOKENS];
    if (version != kind->version)
        return fsdp_error(FSDP_EINVAL, "write it again with llm.c's dev/data scripts",
                          "data: %s: version: got %d, expected %d", path, version, kind->version);
    const size_t expected =
        SHARD_HEADER_BYTES + (size_t)(n < 0 ? 0 : n) * (size_t)kind->token_bytes;
    if (n < 0 || file_bytes != expected)
        return fsdp_error(FSDP_EINVAL, "the file was cut off or added to: copy it again",
                          "data: %s: length: got %zu bytes, expected %zu for the %d tokens of its "
                          "header",
                          path, file_bytes, expected, n);
    f->header_bytes = SHARD_HEADER_BYTES;
    f->n_tokens = (size_t)n;
    *token_bytes = kind->token_bytes;
    return FSDP_OK;
}

/* A text has no zero byte, and of other control characters that no editor writes at most one in 32
 * bytes. Packed tokens have zeros; compressed files have every byte equally often. */
static bool is_text(const unsigned char *head, size_t n)
{
    size_t n_odd = 0;
    for (size_t i = 0; i < n; i++)
        n_odd += head[i] < ' ' && (head[i] < '\b' || head[i] > '\r') && head[i] != '\033';
    return memchr(head, 0, n) == NULL && n_odd <= n / 32;
}

/* Whether tokens of 16 bits are the halves of tokens of 32 bits: then each second one is small. */
static bool looks_wide(const void *head, size_t n_bytes)
{
    const uint16_t *half = head;
    uint16_t most_low = 0, most_high = 0;
    for (size_t i = 0; i + 1 < n_bytes / sizeof *half; i += 2) {
        most_low = half[i] > most_low ? half[i] : most_low;
        most_high = half[i + 1] > most_high ? half[i + 1] : most_high;
    }
    return n_bytes >= 32 && most_high < 16 && most_low >= 16;
}

bool tokenizer_in(const char *dir)
{
    glob_t g = {0};
    const bool is_there = glob_in(dir, "{tokenizer.json,tokenizer.model,vocab.json,spiece.model}",
                                  GLOB_BRACE, &g) == 0;
    globfree(&g);
    return is_there;
}

/* Check a file whose format nobody has named. */
static fsdp_status check_text(const corpus_request *r, const char *path, const void *head,
                              size_t head_bytes)
{
    if (!is_text(head, head_bytes))
        return fsdp_error(FSDP_EINVAL,
                          "unpack it if it is compressed; pass --data-format uint16 or uint32 for "
                          "tokens, or bytes to take it as it is",
                          "data: %s: got a file that is no text, expected a text or llm.c's shards",
                          path);
    if (r->tokenizer == NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      "make tokens as docs/models.md shows; if the model's tokens are bytes, pass "
                      "--data-format bytes",
                      "data: %s: got a text, expected tokens of %s, whose vocabulary has %zu", path,
                      r->tokenizer, r->vocab_limit);
}

/* What begins a file of another kind; NULL: nothing known does. */
static const char *other_kind(const void *head, size_t n)
{
    static const struct {
        const char *begin, *kind;
    } KINDS_OF_FILES[] = {{"\x93NUMPY", "a NumPy file, which has a header"},
                          {"PK\x03\x04", "a zip file"},
                          {"\x1f\x8b\x08", "a gzip file"},
                          {"\x28\xb5\x2f\xfd", "a zstd file"},
                          {"\xfd\x37zXZ", "an xz file"},
                          {"\x89HDF", "an HDF5 file"},
                          {"PAR1", "a Parquet file"}};
    for (size_t i = 0; i < sizeof KINDS_OF_FILES / sizeof *KINDS_OF_FILES; i++) {
        const size_t bytes = strlen(KINDS_OF_FILES[i].begin);
        if (n >= bytes && memcmp(head, KINDS_OF_FILES[i].begin, bytes) == 0)
            return KINDS_OF_FILES[i].kind;
    }
    return n >= 64 && is_text(head, n) ? "a text" : NULL;
}

static fsdp_status check_plain(const corpus *c, const char *path, const void *head,
                               size_t head_bytes, size_t file_bytes)
{
    if (shard_kind_of(head, head_bytes) != NULL)
        return fsdp_error(FSDP_EINVAL, "leave --data-format out",
                          "data: %s: got one of llm.c's shards, expected a file without a header",
                          path);
    const char *other = c->token_bytes > 1 ? other_kind(head, head_bytes) : NULL;
    if (other != NULL)
        return fsdp_error(FSDP_EINVAL,
                          "write the tokens alone, as array.tofile of NumPy does, or leave "
                          "--data-format out for a text",
                          "data: %s: got %s, expected tokens of %d bits", path, other,
                          8 * c->token_bytes);
    if (file_bytes % (size_t)c->token_bytes != 0)
        return fsdp_error(FSDP_EINVAL, "copy the file again, or pass another --data-format",
                          "data: %s: got %zu bytes, expected a multiple of %d (uint%d)", path,
                          file_bytes, c->token_bytes, 8 * c->token_bytes);
    if (c->format != CORPUS_UINT16 || !looks_wide(head, head_bytes))
        return FSDP_OK;
    return fsdp_error(
        FSDP_EINVAL, "pass --data-format uint32",
        "data: %s: got tokens of which each second one is below 16, expected uint16; such are the "
        "halves of 32-bit tokens",
        path);
}

fsdp_status token_file_format(corpus *c, const corpus_request *r, const void *head,
                              size_t head_bytes, size_t file_bytes, corpus_file *f)
{
    int width = c->format == CORPUS_UINT32 ? 4 : c->format == CORPUS_UINT16 ? 2 : 1;
    if (c->format == CORPUS_AUTO) {
        const bool is_named_so = fnmatch("*.bin", f->path, 0) == 0;
        c->format = is_named_so || shard_kind_of(head, head_bytes) ? CORPUS_LLMC : CORPUS_BYTES;
    }
    if (r->format == CORPUS_AUTO && c->format == CORPUS_BYTES)
        TRY(check_text(r, f->path, head, head_bytes));
    if (c->format == CORPUS_LLMC)
        TRY(check_shard(f->path, head, head_bytes, file_bytes, f, &width));
    if (c->token_bytes != 0 && c->token_bytes != width)
        return fsdp_error(FSDP_EINVAL, "pass shards of one kind",
                          "data: %s: got tokens of %d bytes, expected %d as in the files before it",
                          f->path, width, c->token_bytes);
    c->token_bytes = width;
    if (c->format == CORPUS_LLMC)
        return FSDP_OK;
    f->n_tokens = file_bytes / (size_t)width;
    return check_plain(c, f->path, head, head_bytes, file_bytes);
}
