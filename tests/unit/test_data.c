/* test_data.c -- corpora: texts, llm.c shards, the licence texts, the synthetic text; and which
 * part of a corpus a sequence reads. Files are made in a directory of its own under TMPDIR. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/base/philox.h"
#include "common/data/data_impl.h"
#include "tests/unit/unit_lib.h"

enum { ANY_VOCAB = 65536, HEADER_INTS = 256, MAGIC = 20240520 };
/* of the first 200 drawn digits */
#define DIGITS_HASH 0xc93dd58dd114b234ull

/* ---- helpers -------------------------------------------------------------------------------- */

/* Bytes that a regular file has lost when it is read, after its length was asked for. */
static off_t lost_bytes;

/* fstat of this program stands before the C library's. */
int fstat(int fd, struct stat *st)
{
    int rc = fstatat(fd, "", st, AT_EMPTY_PATH);
    if (rc == 0 && S_ISREG(st->st_mode))
        st->st_size += lost_bytes;
    return rc;
}

/* A shard in memory (malloc, exactly as long as the file). */
static unsigned char *make_shard(const uint16_t *tokens, size_t n, size_t *file_bytes)
{
    *file_bytes = HEADER_INTS * 4 + 2 * n;
    unsigned char *bytes = calloc(1, *file_bytes);
    const int32_t head[3] = {MAGIC, 1, (int32_t)n};
    memcpy(bytes, head, sizeof head);
    memcpy(bytes + HEADER_INTS * 4, tokens, 2 * n);
    return bytes;
}

static const char *write_shard(const char *name, const uint16_t *tokens, size_t n)
{
    size_t file_bytes;
    unsigned char *bytes = make_shard(tokens, n, &file_bytes);
    const char *path = write_bytes(in_dir(name), bytes, file_bytes);
    free(bytes);
    return path;
}

/* The status, and that a failure leaves nothing behind. */
static void assert_refused(fsdp_status expected, fsdp_status got, const corpus *c, const char *part)
{
    assert_string_equal(fsdp_status_name(got), fsdp_status_name(expected));
    assert_memory_equal(c, &(corpus){0}, sizeof *c);
    assert_says(part);
}

static unsigned token(const corpus *c, size_t i)
{
    int32_t token;
    assert_int_equal(corpus_read(c, i, 1, &token), FSDP_OK);
    return (unsigned)token;
}

/* All tokens of c, read at once. */
static void assert_tokens(const corpus *c, const void *expected, size_t n)
{
    int32_t got[64];
    assert_true(n <= 64);
    assert_int_equal(c->n_tokens, n);
    assert_int_equal(corpus_read(c, 0, n, got), FSDP_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], c->token_bytes == 1 ? ((const uint8_t *)expected)[i]
                                                     : ((const uint16_t *)expected)[i]);
    assert_true(corpus_hash(c) == XXH3_64bits(expected, n * (size_t)c->token_bytes));
}

/* FNV-1a over the tokens as little-endian 16-bit numbers, as replay_corpus.py. */
static uint64_t hash_tokens(const corpus *c)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < c->n_tokens; i++) {
        hash = (hash ^ (token(c, i) & 0xff)) * 0x100000001b3;
        hash = (hash ^ (token(c, i) >> 8)) * 0x100000001b3;
    }
    return hash;
}

/* ---- which part a sequence reads ------------------------------------------------------------ */

static void test_sample_offset(void **state)
{
    (void)state;
    /* the header's example: n=10, T=4: floor(9/4) = 2 places */
    assert_int_equal(sample_offset(10, 0, 4), 0);
    assert_int_equal(sample_offset(10, 1, 4), 4);
    assert_int_equal(sample_offset(10, 2, 4), 0);
    /* n=9: the second place reads targets 5 ... 8, the last token; n=8 has one place only */
    assert_int_equal(sample_offset(9, 1, 4), 4);
    assert_int_equal(sample_offset(8, 1, 4), 0);
    assert_int_equal(sample_offset(5, 7, 4), 0); /* n = T+1: the least */
    assert_int_equal(sample_offset(3, 3, 1), 1);
    for (uint64_t k = 0; k < 2000; k++) {
        const uint64_t big = UINT64_MAX / 3 * (k % 4) + k; /* k*T does not fit 64 bits */
        const unsigned __int128 product = (unsigned __int128)big * 7;
        assert_int_equal(sample_offset(100 + k, big, 7), product % ((99 + k) / 7 * 7));
    }
}

static void test_sample_read(void **state)
{
    (void)state;
    int32_t in[4], out[4];
    uint16_t wide[] = {0, 1, 40000, 3, 65535, 5, 6, 7, 8, 9};
    const corpus bytes = {.n_tokens = 10, .tokens = "abcdefgh\xff\xfe", .token_bytes = 1};
    const corpus words = {.n_tokens = 10, .tokens = wide, .token_bytes = 2};
    sample_read(&bytes, 1, 4, in, out);
    assert_memory_equal(in, ((int32_t[]){'e', 'f', 'g', 'h'}), sizeof in);
    assert_memory_equal(out, ((int32_t[]){'f', 'g', 'h', 255}), sizeof out);
    sample_read(&words, 2, 4, in, out);
    assert_memory_equal(in, ((int32_t[]){0, 1, 40000, 3}), sizeof in);
    assert_memory_equal(out, ((int32_t[]){1, 40000, 3, 65535}), sizeof out);
}

/* ---- synthetic ------------------------------------------------------------------------------ */

/* Written by tests/interop/replay_corpus.py, which is a second implementation. */
static const struct {
    uint64_t seed;
    size_t n_tokens, vocab;
    uint16_t first[32];
    uint64_t hash;
} FIXTURES[] = {
    {1,
     10000,
     256,
     {0, 0,   170, 3,  76, 33, 246, 0, 0, 170, 3,   128, 188, 2, 0,   0,
      0, 170, 3,   12, 8,  14, 187, 4, 0, 0,   170, 2,   0,   0, 170, 3},
     0xd10d9cfc8d8fc707},
    {123456789012345,
     4000,
     50257,
     {6744, 28065, 171,   199, 0,    10195, 5361, 940,   2069,  41392, 7415,
      6789, 713,   170,   6,   1655, 25707, 3795, 49800, 0,     10195, 5361,
      940,  2069,  21222, 0,   1122, 4082,  227,  55,    11164, 21},
     0xa95735321599730a},
    {7,
     2000,
     3,
     {0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
      0, 1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2},
     0xfc27cc11d9afc136},
};

static void test_synthetic_fixtures(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof FIXTURES / sizeof *FIXTURES; f++) {
        corpus c;
        const size_t vocab = FIXTURES[f].vocab;
        assert_int_equal(corpus_synthetic(FIXTURES[f].seed, FIXTURES[f].n_tokens, vocab, &c), 0);
        assert_int_equal(c.n_tokens, FIXTURES[f].n_tokens);
        assert_int_equal(c.vocab_size, vocab);
        assert_int_equal(c.token_bytes, vocab <= 256 ? 1 : 2);
        for (size_t i = 0; i < 32; i++)
            assert_int_equal(token(&c, i), FIXTURES[f].first[i]);
        for (size_t i = 0; i < c.n_tokens; i++)
            assert_in_range(token(&c, i), 0, vocab - 1);
        assert_true(hash_tokens(&c) == FIXTURES[f].hash);
        corpus_close(&c);
    }
}

static void test_synthetic_properties(void **state)
{
    (void)state;
    corpus c, longer, other;
    assert_int_equal(corpus_synthetic(5, 100, 256, &c), FSDP_OK);
    assert_int_equal(corpus_synthetic(5, 40000, 256, &longer), FSDP_OK);
    assert_int_equal(corpus_synthetic(6, 40000, 256, &other), FSDP_OK);
    assert_memory_equal(c.tokens, longer.tokens, 100); /* a longer corpus begins with a shorter */
    assert_memory_not_equal(longer.tokens, other.tokens, 100);
    /* After b the choice below 8 of 16 gives one symbol. 40,000 draws of 1/2 (or more, where other
     * choices hit the same symbol) are below 0.48 with probability 1e-15 (8 standard deviations of
     * 0.0025). */
    static unsigned pairs[256][256];
    memset(pairs, 0, sizeof pairs);
    for (size_t i = 1; i < longer.n_tokens; i++)
        pairs[token(&longer, i - 1)][token(&longer, i)]++;
    size_t best = 0;
    for (size_t b = 0; b < 256; b++) {
        unsigned most = 0;
        for (size_t t = 0; t < 256; t++)
            most = pairs[b][t] > most ? pairs[b][t] : most;
        best += most;
    }
    assert_in_range(best, 48 * longer.n_tokens / 100, 80 * longer.n_tokens / 100);
    corpus_close(&c);
    corpus_close(&longer);
    corpus_close(&other);
    corpus_close(&other); /* a zeroed struct is accepted */
}

static void test_synthetic_refuses(void **state)
{
    (void)state;
    corpus c;
    assert_refused(FSDP_EINVAL, corpus_synthetic(1, 10, 0, &c), &c, "got 0, expected 1");
    assert_refused(FSDP_EINVAL, corpus_synthetic(1, 10, 65537, &c), &c, "got 65537");
    assert_refused(FSDP_EINVAL, corpus_synthetic(1, 0, 256, &c), &c, "tokens: got 0");
    assert_int_equal(corpus_synthetic(1, 1, 65536, &c), FSDP_OK);
    corpus_close(&c);
    assert_int_equal(corpus_synthetic(1, 9, 1, &c), FSDP_OK);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(token(&c, i), 0);
    corpus_close(&c);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void test_text(void **state)
{
    (void)state;
    corpus c;
    const char text[] = "To be,\n\xc3\xa9 \0 or"; /* any byte is a token */
    const char *path = write_bytes(in_dir("text"), text, sizeof text - 1);
    assert_int_equal(corpus_open_file(path, 256, 4, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, sizeof text - 1);
    assert_int_equal(c.token_bytes, 1);
    assert_int_equal(c.vocab_size, 256);
    assert_string_equal(c.source, path);
    assert_tokens(&c, text, sizeof text - 1);
    corpus_close(&c);
    assert_int_equal(corpus_open_file(path, 50257, sizeof text - 2, &c), FSDP_OK); /* n = T+1 */
    corpus_close(&c);
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 256, sizeof text - 1, &c), &c,
                   "got 14 bytes, expected at least 15");
    assert_string_equal(fsdp_error_get()->hint, "pass --seq-len 13 or less, or more data");
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 128, 4, &c), &c,
                   "byte 7: got 195, expected less than 128");
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 195, 4, &c), &c, "byte 7: got 195");
    assert_int_equal(corpus_open_file(path, 196, 4, &c), FSDP_OK);
    corpus_close(&c);
}

/* What others write to the file of a running job is never taken for its data. */
static void test_changed_later(void **state)
{
    (void)state;
    static const int lengths[] = {9, 0, -1}; /* rewritten; cut off; removed */
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        corpus c;
        int32_t in[4], out[4];
        const uint16_t tokens[] = {1, 2, 3, 4, 5};
        const bool text = i % 2 == 0;
        const int length = lengths[i / 2];
        const char *path = text ? write_bytes(in_dir("later"), "To be, or", 9)
                                : write_shard("later.bin", tokens, 5);
        assert_int_equal(corpus_open_file(path, 256, 4, &c), FSDP_OK);
        if (length >= 0) { /* in place, as cp does */
            static char other[2000] = "Not to be";
            write_bytes(path, other, length == 0 ? 0 : text ? 9 : sizeof other);
            assert_int_equal(sample_read(&c, 0, 4, in, out), FSDP_EIO);
            assert_says(length > 0 ? "was changed while the run used it" : "was shortened");
            assert_says(path);
        } else {
            assert_int_equal(unlink(path), 0);
            assert_tokens(&c, text ? (const void *)"To be, or" : tokens, text ? 9 : 5);
        }
        corpus_close(&c);
    }
}

/* Sequences that lie in several blocks and files: 30,000 tokens, of which a block has 8192. */
static void test_blocks(void **state)
{
    (void)state;
    enum { N = 30000, IN_FIRST = 21000, T = 999 };
    static uint16_t tokens[N];
    static int32_t in[T], out[T], all[N];
    corpus c;
    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint16_t)philox_u32(3, 0, i);
    assert_int_equal(mkdir(in_dir("blocks"), 0700), 0);
    write_shard("blocks/1.bin", tokens, IN_FIRST);
    write_shard("blocks/2.bin", tokens, 0);
    write_shard("blocks/3.bin", tokens + IN_FIRST, N - IN_FIRST);
    assert_int_equal(corpus_open_file(in_dir("blocks"), ANY_VOCAB, T, &c), FSDP_OK);
    assert_true(corpus_hash(&c) == XXH3_64bits(tokens, sizeof tokens));
    for (uint64_t k = 0; k < 31; k++) {
        const size_t o = sample_offset(N, k, T);
        assert_int_equal(sample_read(&c, k, T, in, out), FSDP_OK);
        for (size_t t = 0; t < T; t++) {
            assert_int_equal(in[t], tokens[o + t]);
            assert_int_equal(out[t], tokens[o + t + 1]);
        }
    }
    assert_int_equal(corpus_read(&c, 0, N, all), FSDP_OK);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(all[i], tokens[i]);
    corpus_close(&c);
}

static void test_cut_off_meanwhile(void **state)
{
    (void)state;
    corpus c;
    const char *path = write_bytes(in_dir("short"), "To be, or", 9);
    lost_bytes = 1;
    assert_refused(FSDP_EIO, corpus_open_file(path, 256, 4, &c), &c, "shortened while it was read");
    lost_bytes = 0;
    assert_int_equal(corpus_open_file(path, 256, 4, &c), FSDP_OK);
    corpus_close(&c);
}

static void test_text_refuses(void **state)
{
    (void)state;
    corpus c;
    const char *path = write_bytes(in_dir("empty"), "", 0);
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 256, 1, &c), &c,
                   "got 0 bytes, expected at least 2");
    assert_says(path);
    path = in_dir("missing");
    assert_refused(FSDP_EIO, corpus_open_file(path, 256, 4, &c), &c, "No such file");
    assert_says(path);
    path = in_dir("fifo"); /* without a writer: must not wait for one */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(FSDP_EIO, corpus_open_file(path, 256, 4, &c), &c, "not a regular file");
    path = in_dir("text/inside");
    assert_refused(FSDP_EIO, corpus_open_file(path, 256, 4, &c), &c, "Not a directory");
}

/* ---- shards --------------------------------------------------------------------------------- */

static void test_shard(void **state)
{
    (void)state;
    corpus c;
    const uint16_t tokens[] = {50256, 0, 17, 65535, 4};
    const char *path = write_shard("one.bin", tokens, 5);
    assert_int_equal(corpus_open_file(path, ANY_VOCAB, 4, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, 5);
    assert_int_equal(c.token_bytes, 2);
    assert_int_equal(c.vocab_size, ANY_VOCAB);
    assert_tokens(&c, tokens, 5);
    corpus_close(&c);
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 65535, 4, &c), &c,
                   "token 3: got 65535, expected less than 65535");
    assert_string_equal(fsdp_error_get()->hint, "use a model whose --vocab-size is at least 65536");
    assert_refused(FSDP_EINVAL, corpus_open_file(path, 50256, 4, &c), &c, "token 0: got 50256");
    assert_refused(FSDP_EINVAL, corpus_open_file(path, ANY_VOCAB, 5, &c), &c,
                   "got 5 tokens, expected at least 6");
    path = write_shard("none.bin", tokens, 0);
    assert_refused(FSDP_EINVAL, corpus_open_file(path, ANY_VOCAB, 1, &c), &c, "got 0 tokens");
    path = write_shard("by-magic", tokens, 5); /* another name: known by its first bytes */
    assert_int_equal(corpus_open_file(path, ANY_VOCAB, 4, &c), FSDP_OK);
    assert_int_equal(c.token_bytes, 2);
    corpus_close(&c);
}

/* Writes a good shard with header int `field` replaced and `more` bytes added (or taken). */
static void assert_shard_refused(int field, int32_t value, int more, const char *part)
{
    const uint16_t tokens[10] = {1, 2, 3};
    size_t file_bytes;
    corpus c;
    unsigned char *bytes = make_shard(tokens, 10, &file_bytes);
    unsigned char *file = calloc(1, file_bytes + 16);
    memcpy(file, bytes, file_bytes);
    if (field >= 0)
        memcpy(file + 4 * field, &value, sizeof value);
    const char *path = write_bytes(in_dir("bad.bin"), file, (size_t)((long)file_bytes + more));
    assert_refused(FSDP_EINVAL, corpus_open_file(path, ANY_VOCAB, 4, &c), &c, part);
    assert_says(path);
    free(bytes);
    free(file);
}

static void test_shard_header(void **state)
{
    (void)state;
    assert_shard_refused(0, MAGIC + 1, 0, "magic: got 20240521, expected 20240520");
    assert_shard_refused(0, 20240801, 0, "Llama-3");
    assert_shard_refused(1, 2, 0, "version: got 2, expected 1");
    assert_shard_refused(2, -1, 0, "number of tokens: got -1");
    assert_shard_refused(2, 11, 0, "length: got 1044 bytes, expected 1046 for the 11 tokens");
    assert_shard_refused(2, 9, 0, "length: got 1044 bytes, expected 1042");
    assert_shard_refused(2, INT32_MAX, 0, "expected 4294968318");
    assert_shard_refused(-1, 0, 1, "length: got 1045 bytes, expected 1044");
    assert_shard_refused(-1, 0, -1, "length: got 1043 bytes");
    assert_shard_refused(-1, 0, -21, "got a file of 1023 bytes, expected at least 1024");
    assert_shard_refused(-1, 0, -1044, "got a file of 0 bytes");
}

static void test_shards_joined(void **state)
{
    (void)state;
    corpus c;
    const uint16_t a[] = {1, 2, 3}, b[] = {4, 5}, other[] = {9};
    assert_int_equal(mkdir(in_dir("shards"), 0700), 0);
    write_shard("shards/x_000002.bin", b, 2); /* made first: the order is that of the names */
    write_shard("shards/x_000001.bin", a, 3);
    write_shard("shards/y.bin", other, 1);
    write_bytes(in_dir("shards/README"), "no shard", 8);
    assert_int_equal(mkdir(in_dir("shards/d.bin"), 0700), 0);
    const uint16_t joined[] = {1, 2, 3, 4, 5, 9};
    assert_int_equal(corpus_open_file(in_dir("shards"), 10, 5, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, 6);
    assert_int_equal(c.token_bytes, 2);
    assert_int_equal(c.vocab_size, 10);
    assert_tokens(&c, joined, 6);
    corpus_close(&c);
    assert_int_equal(corpus_open_file(in_dir("shards/x_*.bin"), 10, 4, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, 5);
    assert_tokens(&c, joined, 5);
    corpus_close(&c);
    assert_refused(FSDP_EINVAL, corpus_open_file(in_dir("shards"), 9, 5, &c), &c, "y.bin: token 0");
    assert_refused(FSDP_EINVAL, corpus_open_file(in_dir("shards"), 10, 6, &c), &c, "got 6 tokens");
    assert_refused(FSDP_EIO, corpus_open_file(in_dir("shards/z*"), 10, 5, &c), &c, "no file");
    assert_refused(FSDP_EINVAL, corpus_open_file(in_dir("shards/*ME"), 10, 5, &c), &c, "README");
    assert_refused(FSDP_EIO, corpus_open_file(in_dir("shards/d.bin"), 10, 5, &c), &c,
                   "without .bin files");
    assert_int_equal(symlink("gone", in_dir("shards/w.bin")), 0); /* no shard is left out */
    assert_refused(FSDP_EIO, corpus_open_file(in_dir("shards"), 10, 5, &c), &c,
                   "w.bin: No such file");
    assert_int_equal(unlink(in_dir("shards/w.bin")), 0);
    write_shard("shards/[1]*", a, 3); /* a file of that name is that file, no pattern */
    assert_int_equal(corpus_open_file(in_dir("shards/[1]*"), 10, 2, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, 3);
    corpus_close(&c);
}

/* Random numbers below n, one after the other. */
typedef struct draws {
    uint64_t stream, next;
} draws;

static uint32_t draw(draws *r, size_t n)
{
    return philox_u32(99, r->stream, r->next++) % (uint32_t)n;
}

/* One random byte: mostly in the three fields of the header. */
static void damage(draws *r, unsigned char *bytes, size_t file_bytes)
{
    const size_t at = draw(r, 3) ? draw(r, 12) : draw(r, file_bytes);
    bytes[at] = (unsigned char)draw(r, 256);
}

/* 10,000 damaged files in memory that end exactly where the file ends, so that a sanitizer sees a
 * read beyond. What is accepted must be what the header says; what is refused names the path. */
static void test_shard_fuzz(void **state)
{
    (void)state;
    size_t accepted = 0;
    for (uint64_t round = 0; round < 10000; round++) {
        draws r = {.stream = round};
        uint16_t tokens[40];
        for (size_t i = 0; i < 40; i++)
            tokens[i] = (uint16_t)draw(&r, 1000);
        size_t file_bytes, n_tokens = 12345;
        const size_t n = draw(&r, 41);
        unsigned char *whole = make_shard(tokens, n, &file_bytes);
        for (uint32_t changes = draw(&r, 4); changes > 0; changes--)
            damage(&r, whole, file_bytes);
        const size_t cut = draw(&r, 4) ? file_bytes : draw(&r, file_bytes + 1);
        unsigned char *bytes = malloc(cut ? cut : 1);
        memcpy(bytes, whole, cut);
        fsdp_status status = token_file_check("some/path.bin", bytes, cut, &n_tokens);
        if (status == FSDP_OK) {
            accepted++;
            assert_memory_equal(bytes, ((int32_t[]){MAGIC, 1, (int32_t)n_tokens}), 12);
            assert_int_equal(cut, 1024 + 2 * n_tokens);
        } else {
            assert_int_equal(status, FSDP_EINVAL);
            assert_says("some/path.bin: ");
        }
        token_file_is("x", bytes, cut);
        free(bytes);
        free(whole);
    }
    /* a quarter has no change, three quarters of them no cut: at least 1,800 must pass */
    assert_in_range(accepted, 1500, 5000);
}

/* ---- the licence texts ---------------------------------------------------------------------- */

static void test_texts(void **state)
{
    (void)state;
    corpus c;
    const char *note = NULL;
    assert_int_equal(mkdir(in_dir("texts"), 0700), 0);
    assert_refused(FSDP_EINVAL, corpus_open_texts(in_dir("texts"), 1, &c, &note), &c,
                   "got 0 bytes, expected at least 2");
    write_bytes(in_dir("texts/b"), "second", 6);
    write_bytes(in_dir("texts/a"), "first", 5);
    write_bytes(in_dir("texts/empty"), "", 0);
    assert_int_equal(symlink("a", in_dir("texts/link")), 0);
    assert_int_equal(mkdir(in_dir("texts/sub"), 0700), 0);
    assert_int_equal(corpus_open_texts(in_dir("texts"), 4, &c, &note), FSDP_OK);
    assert_int_equal(c.n_tokens, 11);
    assert_tokens(&c, "firstsecond", 11);
    assert_non_null(strstr(note, "differ from Debian 12's"));
    corpus_close(&c);
    assert_refused(FSDP_EINVAL, corpus_open_texts(in_dir("texts"), 11, &c, &note), &c,
                   "got 11 bytes, expected at least 12");
    assert_refused(FSDP_EIO, corpus_open_texts(in_dir("gone"), 4, &c, &note), &c, "No such file");
    assert_non_null(strstr(fsdp_error_get()->hint, "--data"));
}

static void test_default(void **state)
{
    (void)state;
    corpus c;
    const char *note = NULL;
    if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) {
        print_message("SKIP test_default: no licence texts on this system\n");
        skip();
    }
    assert_int_equal(corpus_open_texts(CORPUS_DEFAULT_DIR, 64, &c, &note), FSDP_OK);
    assert_int_equal(c.vocab_size, 256);
    assert_true(c.n_tokens > 35000); /* GPL-3 alone */
    /* the note is empty exactly on Debian 12's texts: 237,320 bytes */
    assert_int_equal(note[0] == '\0', c.n_tokens == 237320);
    corpus_close(&c);
}

/* ---- main ----------------------------------------------------------------------------------- */

/* ---- images ---------------------------------------------------------------------------------- */

enum { N_IMAGES = 5 };

/* A file of MNIST's format: magic, dims [n_dims], then `elems` bytes, each (7 i) mod `below`. */
static void write_idx(const char *name, int n_dims, const uint32_t *dims, size_t elems, int below)
{
    unsigned char *bytes = calloc(1, 16 + elems), *at = bytes + 4;
    bytes[2] = 8;
    bytes[3] = (unsigned char)n_dims;
    for (int d = 0; d < n_dims; d++)
        for (int shift = 24; shift >= 0; shift -= 8)
            *at++ = (unsigned char)(dims[d] >> shift);
    for (size_t i = 0; i < elems; i++)
        *at++ = (unsigned char)(7 * i % (size_t)below);
    write_bytes(in_dir(name), bytes, (size_t)(at - bytes));
    free(bytes);
}

static void write_images(void)
{
    const uint32_t dims[3] = {N_IMAGES, IMAGE_SIDE, IMAGE_SIDE};
    mkdir(in_dir("mnist"), 0700);
    write_idx("mnist/train-images-idx3-ubyte", 3, dims, N_IMAGES * IMAGE_PIXELS, 251);
    write_idx("mnist/train-labels-idx1-ubyte", 1, dims, N_IMAGES, 10);
}

static void test_images(void **state)
{
    (void)state;
    corpus c;
    float pixels[IMAGE_PIXELS];
    int32_t label;
    write_images();
    assert_int_equal(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c), FSDP_OK);
    assert_int_equal(c.n_tokens, N_IMAGES);
    for (uint64_t k = 0; k < 2 * N_IMAGES; k++) {
        const size_t first = k % N_IMAGES * IMAGE_PIXELS;
        assert_int_equal(sample_read(&c, k, 1, pixels, &label), FSDP_OK);
        assert_int_equal(label, 7 * (k % N_IMAGES) % 10);
        for (size_t i = 0; i < IMAGE_PIXELS; i++) {
            const float grey = (float)(7 * (first + i) % 251) / 255.0f;
            assert_true(pixels[i] == (grey - 0.1307f) / 0.3081f);
        }
    }
    const uint64_t hash = corpus_hash(&c);
    corpus_close(&c);
    const uint32_t dims[1] = {N_IMAGES}; /* other labels, another hash */
    write_idx("mnist/train-labels-idx1-ubyte", 1, dims, N_IMAGES, 9);
    assert_int_equal(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c), FSDP_OK);
    assert_true(corpus_hash(&c) != hash);
    corpus_close(&c);
}

/* Open the folder, of which one file is wrong: it is refused, with `part` in the words. */
static void refuse_images(fsdp_status expected, const char *part)
{
    corpus c;
    const fsdp_status got = corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c);
    assert_refused(expected, got, &c, part);
    write_images();
}

static void test_images_refused(void **state)
{
    (void)state;
    corpus c;
    const uint32_t dims[3] = {N_IMAGES, IMAGE_SIDE, IMAGE_SIDE}, narrow[3] = {N_IMAGES, 28, 27};
    const uint32_t many[3] = {UINT32_MAX, IMAGE_SIDE, IMAGE_SIDE}, none[1] = {0}, four[1] = {4};
    write_images();
    assert_refused(FSDP_EIO, corpus_open_images(in_dir("mnist"), true, NO_SHUFFLE, &c), &c,
                   "mnist/t10k-images-idx3-ubyte: No such file");
    write_idx("mnist/train-images-idx3-ubyte", 3, narrow, N_IMAGES * 28 * 27, 251);
    refuse_images(FSDP_EINVAL, "got images of 28 x 27, expected 28 x 28");
    write_idx("mnist/train-images-idx3-ubyte", 3, dims, N_IMAGES * IMAGE_PIXELS - 1, 251);
    refuse_images(FSDP_EINVAL, "got 3935 bytes, expected 3936 for the 5 images");
    write_idx("mnist/train-images-idx3-ubyte", 3, many, IMAGE_PIXELS, 251);
    refuse_images(FSDP_EINVAL, "for the 4294967295 images");
    write_idx("mnist/train-images-idx3-ubyte", 1, dims, N_IMAGES, 251);
    refuse_images(FSDP_EINVAL,
                  "bytes that begin 00000801, expected at least 16 that begin 00000803");
    write_bytes(in_dir("mnist/train-images-idx3-ubyte"), "\x1f\x8b\x08\x08packed", 10);
    refuse_images(FSDP_EINVAL, "got 10 bytes that begin 1f8b0808, expected at least 16");
    write_bytes(in_dir("mnist/train-images-idx3-ubyte"), "", 0);
    refuse_images(FSDP_EINVAL, "got 0 bytes that begin 00000000");
    write_idx("mnist/train-labels-idx1-ubyte", 1, four, 4, 10);
    refuse_images(FSDP_EINVAL, "got 4 labels, expected 5");
    write_idx("mnist/train-labels-idx1-ubyte", 1, none, 0, 10);
    refuse_images(FSDP_EINVAL, "got 8 bytes");
    write_idx("mnist/train-labels-idx1-ubyte", 1, dims, N_IMAGES, 29);
    refuse_images(FSDP_EINVAL, "label 2: got 14, expected 0 to 9");
    assert_refused(FSDP_EINVAL, corpus_digits(0, 0, NO_SHUFFLE, &c), &c, "drawn digits: got 0");
}

/* Every epoch has every element once, and an order of its own; so has every seed. */
static void test_shuffle(void **state)
{
    (void)state;
    static const size_t SIZES[] = {1, 2, 3, 4, 5, 16, 17, 1000};
    unsigned char seen[1000];
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (size_t at = 0; at < SIZES[s]; at++)
                seen[shuffle_index(1, epoch, SIZES[s], at)]++;
            for (size_t at = 0; at < SIZES[s]; at++)
                assert_int_equal(seen[at], 1);
        }
    size_t same = 0, same_seed = 0, fixed = 0;
    for (size_t at = 0; at < 1000; at++) {
        same += shuffle_index(1, 0, 1000, at) == shuffle_index(1, 1, 1000, at);
        same_seed += shuffle_index(1, 0, 1000, at) == shuffle_index(2, 0, 1000, at);
        fixed += shuffle_index(1, 0, 1000, at) == at;
    }
    /* Of two random orders one place in 1000 agrees on average; 12 have the chance 6e-10. */
    assert_true(same < 12 && same_seed < 12 && fixed < 12);
}

/* A shuffled set gives each image once an epoch, in the order of shuffle_index. */
static void test_shuffled_images(void **state)
{
    (void)state;
    corpus plain, c;
    float pixels[IMAGE_PIXELS], expected[IMAGE_PIXELS];
    int32_t label, expected_label;
    assert_int_equal(corpus_digits(100, 6, NO_SHUFFLE, &plain), FSDP_OK);
    assert_int_equal(corpus_digits(100, 6, 3, &c), FSDP_OK);
    for (uint64_t k = 0; k < 18; k++) {
        const size_t at = shuffle_index(3, k / 6, 6, k % 6);
        assert_int_equal(sample_read(&c, k, 1, pixels, &label), FSDP_OK);
        assert_int_equal(sample_read(&plain, at, 1, expected, &expected_label), FSDP_OK);
        assert_memory_equal(pixels, expected, sizeof pixels);
        assert_int_equal(label, expected_label);
    }
    corpus_close(&plain);
    corpus_close(&c);
}

/* The digits are the same on every machine: the hash of the first 200 is known. */
static void test_digits(void **state)
{
    (void)state;
    static unsigned char pixels[200][IMAGE_PIXELS];
    int count[IMAGE_CLASSES] = {0};
    for (int i = 0; i < 200; i++)
        count[digit_draw((uint64_t)i, pixels[i])]++;
    for (int d = 0; d < IMAGE_CLASSES; d++)
        assert_in_range(count[d], 8, 40);
    for (int i = 1; i < 200; i++)
        assert_memory_not_equal(pixels[i], pixels[i - 1], IMAGE_PIXELS);
    assert_true(XXH3_64bits(pixels, sizeof pixels) == DIGITS_HASH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_offset),
        cmocka_unit_test(test_sample_read),
        cmocka_unit_test(test_synthetic_fixtures),
        cmocka_unit_test(test_synthetic_properties),
        cmocka_unit_test(test_synthetic_refuses),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_changed_later),
        cmocka_unit_test(test_cut_off_meanwhile),
        cmocka_unit_test(test_text_refuses),
        cmocka_unit_test(test_shard),
        cmocka_unit_test(test_shard_header),
        cmocka_unit_test(test_shards_joined),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_shard_fuzz),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_images_refused),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_shuffled_images),
        cmocka_unit_test(test_digits),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
