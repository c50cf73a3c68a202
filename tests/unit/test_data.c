/* test_data.c -- corpora: texts, llm.c shards, the licence texts, the synthetic text, images; and
 * which part of a corpus a sequence reads. The test makes its files in its own directory under
 * TMPDIR. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <sys/resource.h>
#include <xxhash.h>
#ifdef FSDP_HAVE_ZLIB
#include <zlib.h>
#endif
#include "common/base/philox.h"
#include "common/data/data_impl.h"
#include "common/ops/ops.h"
#include "tests/unit/unit_lib.h"

enum { ANY_VOCAB = 65536, HEADER_INTS = 256, MAGIC = 20240520 };
/* hash of the digits that test_digits draws */
#define DIGITS_HASH 0xe127ae159f292f3eull

/* ---- helpers -------------------------------------------------------------------------------- */

/* Bytes that a regular file loses between the query of its length and the read. */
static off_t lost_bytes;

/* Replaces the C library's fstat. */
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

static corpus c; /* of the running test */

/* REFUSED, and the call leaves c zeroed. */
#define FAILS(status, call, part)                                                                  \
    do {                                                                                           \
        REFUSED(status, call, part);                                                               \
        assert_memory_equal(&c, &(corpus){0}, sizeof c);                                           \
    } while (0)

static fsdp_status open_as(corpus_format format, const char *path, size_t vocab, size_t seq_len)
{
    return corpus_open_file(
        &(corpus_request){.path = path, .format = format, .vocab_limit = vocab, .seq_len = seq_len},
        &c);
}

static void fails(const char *name, size_t vocab, size_t seq_len, fsdp_status status,
                  const char *part)
{
    FAILS(status, open_as(CORPUS_AUTO, in_dir(name), vocab, seq_len), part);
}

static unsigned token(size_t i)
{
    int32_t token;
    OK(corpus_read(&c, i, 1, &token));
    return (unsigned)token;
}

/* All tokens of c, read at once. */
static void assert_tokens(int token_bytes, const void *expected, size_t n)
{
    int32_t got[64];
    assert_true(n <= 64);
    assert_int_equal(c.n_tokens, n);
    assert_int_equal(c.token_bytes, token_bytes);
    OK(corpus_read(&c, 0, n, got));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], token_bytes == 1 ? ((const uint8_t *)expected)[i]
                                                  : ((const uint16_t *)expected)[i]);
    assert_true(corpus_hash(&c) == XXH3_64bits(expected, n * (size_t)token_bytes));
}

static void opens(const char *name, size_t vocab, size_t seq_len, int token_bytes,
                  const void *tokens, size_t n)
{
    OK(open_as(CORPUS_AUTO, in_dir(name), vocab, seq_len));
    assert_int_equal(c.vocab_size, vocab);
    assert_tokens(token_bytes, tokens, n);
    corpus_close(&c);
}

/* FNV-1a over the tokens as little-endian 16-bit numbers, like replay_corpus.py. */
static uint64_t hash_tokens(void)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < c.n_tokens; i++) {
        hash = (hash ^ (token(i) & 0xff)) * 0x100000001b3;
        hash = (hash ^ (token(i) >> 8)) * 0x100000001b3;
    }
    return hash;
}

/* ---- which part a sequence reads ------------------------------------------------------------ */

TEST(test_sample_offset)
{
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

TEST(test_sample_read)
{
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

/* Written by tests/interop/replay_corpus.py, a second implementation. */
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

TEST(test_synthetic_fixtures)
{
    for (size_t f = 0; f < sizeof FIXTURES / sizeof *FIXTURES; f++) {
        const size_t vocab = FIXTURES[f].vocab;
        OK(corpus_synthetic(FIXTURES[f].seed, FIXTURES[f].n_tokens, vocab, &c));
        assert_int_equal(c.n_tokens, FIXTURES[f].n_tokens);
        assert_int_equal(c.vocab_size, vocab);
        assert_int_equal(c.token_bytes, vocab <= 256 ? 1 : 2);
        for (size_t i = 0; i < 32; i++)
            assert_int_equal(token(i), FIXTURES[f].first[i]);
        for (size_t i = 0; i < c.n_tokens; i++)
            assert_uint_in_range(token(i), 0, vocab - 1);
        assert_true(hash_tokens() == FIXTURES[f].hash);
        corpus_close(&c);
    }
}

TEST(test_synthetic_properties)
{
    corpus shorter, other;
    OK(corpus_synthetic(5, 100, 256, &shorter));
    OK(corpus_synthetic(5, 40000, 256, &c));
    OK(corpus_synthetic(6, 40000, 256, &other));
    assert_memory_equal(c.tokens, shorter.tokens, 100); /* a longer corpus begins with a shorter */
    assert_memory_not_equal(c.tokens, other.tokens, 100);
    corpus_close(&c);
    corpus_close(&shorter);
    corpus_close(&other);
    corpus_close(&other); /* a zeroed struct is accepted */
}

TEST(test_synthetic_refuses)
{
    FAILS(FSDP_EINVAL, corpus_synthetic(1, 10, 0, &c), "got 0, expected 1");
    FAILS(FSDP_EINVAL, corpus_synthetic(1, 10, 65537, &c), "got 65537");
    FAILS(FSDP_EINVAL, corpus_synthetic(1, 0, 256, &c), "tokens: got 0");
    OK(corpus_synthetic(1, 1, 65536, &c));
    corpus_close(&c);
    OK(corpus_synthetic(1, 9, 1, &c));
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(token(i), 0);
    corpus_close(&c);
}

/* ---- texts ---------------------------------------------------------------------------------- */

TEST(test_text)
{
    const char text[] = "To be,\n\xc3\xa9 \0 or"; /* any byte is a token */
    enum { N = sizeof text - 1 };
    const char *path = write_bytes(in_dir("text"), text, N);
    OK(open_as(CORPUS_BYTES, path, 256, 4));
    assert_string_equal(c.source, path);
    assert_tokens(1, text, N);
    corpus_close(&c);
    fails("text", 256, 4, FSDP_EINVAL, "/text: got a file that is no text"); /* by its zero */
    write_bytes(path, text, N - 5);
    opens("text", 256, 4, 1, text, N - 5);
    opens("text", 50257, N - 6, 1, text, N - 5); /* n = T+1 */
    opens("text", 196, 4, 1, text, N - 5);
    write_bytes(path, "To be,\n\xc3\xa9 : or", N);
    fails("text", 256, N, FSDP_EINVAL, "got 14 bytes, expected at least 15");
    assert_string_equal(fsdp_error_get()->hint, "pass --seq-len 13 or less, or more data");
    fails("text", 128, 4, FSDP_EINVAL, "byte 7: got 195, expected less than 128");
    fails("text", 195, 4, FSDP_EINVAL, "byte 7: got 195");
}

/* What others write to the file of a running job is never used as data. */
TEST(test_changed_later)
{
    static const int lengths[] = {9, 0, -1}; /* overwritten; cut off; removed */
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        int32_t in[4], out[4];
        const uint16_t tokens[] = {1, 2, 3, 4, 5};
        const bool text = i % 2 == 0;
        const int length = lengths[i / 2];
        const char *path = text ? write_bytes(in_dir("later"), "To be, or", 9)
                                : write_shard("later.bin", tokens, 5);
        OK(open_as(CORPUS_AUTO, path, 256, 4));
        if (length >= 0) { /* in place, as cp does */
            static char other[2000] = "Not to be";
            write_bytes(path, other, length == 0 ? 0 : text ? 9 : sizeof other);
            REFUSED(FSDP_EIO, sample_read(&c, 0, 4, in, out),
                    length > 0 ? "was changed while the run used it" : "was shortened");
            assert_says(path);
        } else {
            assert_int_equal(unlink(path), 0);
            assert_tokens(2 - text, text ? (const void *)"To be, or" : tokens, text ? 9 : 5);
        }
        corpus_close(&c);
    }
}

/* Sequences that span several blocks and files: 30,000 tokens, in blocks of 8192. */
TEST(test_blocks)
{
    enum { N = 30000, IN_FIRST = 21000, T = 999 };
    static uint16_t tokens[N];
    static int32_t in[T], out[T], all[N];
    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint16_t)philox_u32(3, 0, i);
    assert_int_equal(mkdir(in_dir("blocks"), 0700), 0);
    write_shard("blocks/1.bin", tokens, IN_FIRST);
    write_shard("blocks/2.bin", tokens, 0);
    write_shard("blocks/3.bin", tokens + IN_FIRST, N - IN_FIRST);
    OK(open_as(CORPUS_AUTO, in_dir("blocks"), ANY_VOCAB, T));
    assert_true(corpus_hash(&c) == XXH3_64bits(tokens, sizeof tokens));
    for (uint64_t k = 0; k < 31; k++) {
        const size_t o = sample_offset(N, k, T);
        OK(sample_read(&c, k, T, in, out));
        for (size_t t = 0; t < T; t++) {
            assert_int_equal(in[t], tokens[o + t]);
            assert_int_equal(out[t], tokens[o + t + 1]);
        }
    }
    OK(corpus_read(&c, 0, N, all));
    for (size_t i = 0; i < N; i++)
        assert_int_equal(all[i], tokens[i]);
    corpus_close(&c);
}

TEST(test_cut_off_meanwhile)
{
    write_bytes(in_dir("short"), "To be, or", 9);
    lost_bytes = 1;
    fails("short", 256, 4, FSDP_EIO, "shortened while it was read");
    lost_bytes = 0;
    opens("short", 256, 4, 1, "To be, or", 9);
}

TEST(test_text_refuses)
{
    write_bytes(in_dir("empty"), "", 0);
    fails("empty", 256, 1, FSDP_EINVAL, "empty: got 0 bytes, expected at least 2");
    fails("missing", 256, 4, FSDP_EIO, "missing: No such file");
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0); /* no writer: the open must not wait */
    fails("fifo", 256, 4, FSDP_EIO, "not a regular file");
    fails("text/inside", 256, 4, FSDP_EIO, "Not a directory");
}

/* ---- shards --------------------------------------------------------------------------------- */

TEST(test_shard)
{
    const uint16_t tokens[] = {50256, 0, 17, 65535, 4};
    write_shard("one.bin", tokens, 5);
    write_shard("none.bin", tokens, 0);
    write_shard("by-magic", tokens, 5); /* another name: known by its first bytes */
    opens("one.bin", ANY_VOCAB, 4, 2, tokens, 5);
    opens("by-magic", ANY_VOCAB, 4, 2, tokens, 5);
    fails("one.bin", 65535, 4, FSDP_EINVAL, "token 3: got 65535, expected less than 65535");
    assert_string_equal(
        fsdp_error_get()->hint,
        "use a model whose --vocab-size is at least 65536; with --init-from, other weights");
    fails("one.bin", 50256, 4, FSDP_EINVAL, "token 0: got 50256");
    fails("one.bin", ANY_VOCAB, 5, FSDP_EINVAL, "got 5 tokens, expected at least 6");
    fails("none.bin", ANY_VOCAB, 1, FSDP_EINVAL, "got 0 tokens");
}

/* Shards that are good except for the int `field` of the header, or with `more` bytes. */
TEST(test_shard_header)
{
    static const struct {
        int field; /* -1: none */
        int32_t value;
        int more;
        const char *says;
    } BAD[] = {{0, MAGIC + 1, 0, "magic: got 20240521, expected 20240520 or 20240801"},
               {1, 2, 0, "version: got 2, expected 1"},
               {2, -1, 0, "expected 1024 for the -1 tokens"},
               {2, 11, 0, "length: got 1044 bytes, expected 1046 for the 11 tokens"},
               {2, 9, 0, "length: got 1044 bytes, expected 1042"},
               {2, INT32_MAX, 0, "expected 4294968318"},
               {-1, 0, 1, "length: got 1045 bytes, expected 1044"},
               {-1, 0, -1, "length: got 1043 bytes"},
               {-1, 0, -21, "got a file of 1023 bytes, expected at least 1024"},
               {-1, 0, -1044, "got a file of 0 bytes"},
               {0, 'T' | 'o' << 8, -1000, "magic: got 28500, expected"}};
    const uint16_t tokens[10 + 8] = {1, 2, 3}; /* and room for more bytes */
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        size_t file_bytes;
        unsigned char *file = make_shard(tokens, 10 + 8, &file_bytes);
        memcpy(file + 4 * 2, &(int32_t){10}, 4);
        if (BAD[i].field >= 0)
            memcpy(file + 4 * BAD[i].field, &BAD[i].value, 4);
        write_bytes(in_dir("bad.bin"), file, file_bytes - 2 * 8 + (size_t)BAD[i].more);
        fails("bad.bin", ANY_VOCAB, 4, FSDP_EINVAL, BAD[i].says);
        assert_says("/bad.bin");
        free(file);
    }
}

TEST(test_shards_joined)
{
    const uint16_t a[] = {1, 2, 3}, b[] = {4, 5}, other[] = {9}, joined[] = {1, 2, 3, 4, 5, 9};
    assert_int_equal(mkdir(in_dir("shards"), 0700), 0);
    write_shard("shards/x_000002.bin", b, 2); /* made first: names decide the order */
    write_shard("shards/x_000001.bin", a, 3);
    write_shard("shards/y.bin", other, 1);
    write_bytes(in_dir("shards/README"), "no shard", 8);
    assert_int_equal(mkdir(in_dir("shards/d.bin"), 0700), 0);
    opens("shards", 10, 5, 2, joined, 6);
    opens("shards/x_*.bin", 10, 4, 2, joined, 5);
    fails("shards", 9, 5, FSDP_EINVAL, "y.bin: token 0");
    fails("shards", 10, 6, FSDP_EINVAL, "got 6 tokens");
    fails("shards/z*", 10, 5, FSDP_EIO, "no file");
    fails("shards/*ME", 10, 5, FSDP_EINVAL, "README");
    fails("shards/d.bin", 10, 5, FSDP_EIO, "without .bin files");
    assert_int_equal(symlink("gone", in_dir("shards/w.bin")), 0); /* a missing shard is an error */
    fails("shards", 10, 5, FSDP_EIO, "w.bin: No such file");
    assert_int_equal(unlink(in_dir("shards/w.bin")), 0);
    write_shard("shards/[1]*", a, 3); /* the name of a file is not a pattern */
    opens("shards/[1]*", 10, 2, 2, a, 3);
}

/* Llama 3's shards, and tokens without a header. */
TEST(test_wide)
{
    int32_t got[6];
    uint32_t shard[HEADER_INTS + 6] = {20240801, 7, 6};
    const uint32_t wide[6] = {128000, 1, 70000, 3, 4, 65536};
    const uint16_t narrow[6] = {5, 6, 50000, 8, 9, 10};
    memcpy(shard + HEADER_INTS, wide, sizeof wide);
    write_bytes(in_dir("llama.bin"), shard, sizeof shard);
    write_bytes(in_dir("wide"), wide, sizeof wide);
    write_bytes(in_dir("narrow.bin"), narrow, sizeof narrow);
    static const struct {
        const char *name;
        corpus_format format;
        int token_bytes;
    } GOOD[] = {{"llama.bin", CORPUS_AUTO, 4},
                {"llama.bin", CORPUS_LLMC, 4},
                {"wide", CORPUS_UINT32, 4},
                {"narrow.bin", CORPUS_UINT16, 2}};
    for (int i = 0; i < 4; i++) {
        OK(open_as(GOOD[i].format, in_dir(GOOD[i].name), 128001, 4));
        assert_int_equal(c.n_tokens, 6);
        assert_int_equal(c.token_bytes, GOOD[i].token_bytes);
        OK(corpus_read(&c, 0, 6, got));
        for (int t = 0; t < 6; t++)
            assert_int_equal(got[t], i < 3 ? wide[t] : narrow[t]);
        corpus_close(&c);
    }
    FAILS(FSDP_EINVAL, open_as(CORPUS_AUTO, in_dir("llama.bin"), 128000, 4),
          "token 0: got 128000, expected less than 128000");
    FAILS(FSDP_EINVAL, open_as(CORPUS_AUTO, in_dir("narrow.bin"), 128001, 4), "magic: got");
    assert_non_null(strstr(fsdp_error_get()->hint, "--data-format uint16"));
    FAILS(FSDP_EINVAL, open_as(CORPUS_AUTO, in_dir("wide"), 128001, 4), "a file that is no text");
    assert_int_equal(mkdir(in_dir("both"), 0700), 0);
    write_bytes(in_dir("both/1.bin"), shard, sizeof shard);
    write_shard("both/2.bin", narrow, 6);
    fails("both", 128001, 4, FSDP_EINVAL, "both/2.bin: got tokens of 2 bytes, expected 4");
}

/* What somebody names wrongly. */
TEST(test_wrong_format)
{
    uint32_t halves[20];
    for (uint32_t i = 0; i < 20; i++)
        halves[i] = i == 7 ? 65536 * 15 + 999 : 50000 + i; /* 15: the most that is noticed */
    write_bytes(in_dir("halves"), halves, sizeof halves);
    write_bytes(in_dir("odd"), "12345", 5);
    write_shard("shard.bin", (const uint16_t[]){1, 2, 3, 4, 5}, 5);
    FAILS(FSDP_EINVAL, open_as(CORPUS_UINT16, in_dir("halves"), 1 << 20, 4), "halves of 32-bit");
    assert_string_equal(fsdp_error_get()->hint, "pass --data-format uint32");
    FAILS(FSDP_EINVAL, open_as(CORPUS_UINT16, in_dir("odd"), 1 << 20, 1), "a multiple of 2");
    FAILS(FSDP_EINVAL, open_as(CORPUS_UINT32, in_dir("odd"), 1 << 20, 1), "a multiple of 4");
    for (corpus_format f = CORPUS_BYTES; f <= CORPUS_UINT32; f++)
        if (f != CORPUS_LLMC)
            FAILS(FSDP_EINVAL, open_as(f, in_dir("shard.bin"), 1 << 20, 1), "llm.c's shards");
    for (uint32_t i = 0; i < 20; i++)
        halves[i] = i % 2 << 20 | i; /* a high half of 16 is a token */
    write_bytes(in_dir("halves"), halves, sizeof halves);
    OK(open_as(CORPUS_UINT16, in_dir("halves"), 1 << 20, 4));
    corpus_close(&c);
}

/* Which files are taken for texts: bytes of any encoding that has no zeros, with few controls. */
TEST(test_looks_like_text)
{
    static const struct {
        const char *bytes;
        size_t n;
        bool is_text;
#define FILE_OF(text) text, sizeof text - 1
    } FILES[] = {
        {FILE_OF("plain ASCII,\ttabs\r\nand \f pages \033[1m bold"), true},
        {FILE_OF("\xef\xbb\xbf UTF-8 \xe4\xbd\xa0\xe5\xa5\xbd"), true},
        {FILE_OF("Latin-1: \xe9\xe8\xfc\xdf\xa7"), true},
        {FILE_OF("thirty-two bytes, and one \x01 more"), true},
        {FILE_OF("\x01two controls\x02"), false},
        {FILE_OF("U\0T\0F\0-\0001\0006\0"), false},
        {FILE_OF("\x1f\x8b\x08\x08\x12\x34\x56\x78\x02\x03 packed"), false},
    };
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        write_bytes(in_dir("looks"), FILES[i].bytes, FILES[i].n);
        if (FILES[i].is_text)
            opens("looks", 256, 4, 1, FILES[i].bytes, FILES[i].n);
        else
            fails("looks", 256, 4, FSDP_EINVAL, "looks: got a file that is no text");
    }
}

/* A model with a tokenizer does not take bytes for its tokens unless it is told to. */
TEST(test_tokenizer)
{
    corpus_request r = {.path = write_bytes(in_dir("words"), "To be, or", 9),
                        .vocab_limit = 300,
                        .seq_len = 4,
                        .tokenizer = "gpt2"};
    FAILS(FSDP_EINVAL, corpus_open_file(&r, &c),
          "words: got a text, expected tokens of gpt2, whose vocabulary has 300");
    assert_non_null(strstr(fsdp_error_get()->hint, "docs/models.md"));
    r.format = CORPUS_BYTES;
    OK(corpus_open_file(&r, &c));
    corpus_close(&c);
    assert_int_equal(mkdir(in_dir("model"), 0700), 0);
    assert_false(tokenizer_in(in_dir("model")));
    write_bytes(in_dir("model/tokenizer.json"), "{}", 2);
    assert_true(tokenizer_in(in_dir("model")));
}

TEST(test_folders)
{
    assert_int_equal(mkdir(in_dir("books"), 0700), 0);
    const uint16_t narrow[6] = {5, 6, 50000, 8, 9, 10};
    assert_int_equal(mkdir(in_dir("narrow-files"), 0700), 0);
    write_bytes(in_dir("narrow-files/tokens.u16"), narrow, sizeof narrow);
    write_bytes(in_dir("books/b.txt"), "second", 6);
    write_bytes(in_dir("books/a.txt"), "first", 5);
    write_bytes(in_dir("books/.b.txt.swp"), "hidden", 6);
    opens("books/*.txt", 256, 4, 1, "firstsecond", 11);
    fails("books", 256, 4, FSDP_EIO, "without .bin files");
    assert_non_null(strstr(fsdp_error_get()->hint, "--data-format bytes"));
    assert_int_equal(symlink("a.txt", in_dir("books/c.txt")), 0);
    assert_int_equal(mkdir(in_dir("books/d.txt"), 0700), 0);
    OK(open_as(CORPUS_BYTES, in_dir("books"), 256, 4));
    assert_tokens(1, "firstsecondfirst", 16);
    corpus_close(&c);
    assert_int_equal(unlink(in_dir("books/c.txt")), 0);
    OK(open_as(CORPUS_UINT16, in_dir("narrow-files"), 50001, 4)); /* of any name */
    assert_int_equal(c.n_tokens, 6);
    corpus_close(&c);
    write_bytes(in_dir("books/c.txt"), "\0", 1);
    fails("books/*.txt", 256, 4, FSDP_EINVAL, "c.txt: got a file that is no text");
    const uint16_t a[] = {1, 2, 3};
    write_shard("books/a.bin", a, 3);
    write_bytes(in_dir("books/._a.bin"), "what macOS leaves", 17);
    opens("books", 256, 2, 2, a, 3);
}

/* More shards than a process may open files: each read finds its file again. */
TEST(test_many_shards)
{
    enum { N = 3 * MOST_OPEN };
    int32_t got[2 * N];
    struct rlimit old, few;
    assert_int_equal(mkdir(in_dir("many"), 0700), 0);
    for (uint16_t i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%04d.bin", i);
        write_shard(name, (const uint16_t[]){i, (uint16_t)(2 * i)}, 2);
    }
    getrlimit(RLIMIT_NOFILE, &old);
    few = (struct rlimit){.rlim_cur = MOST_OPEN + 20, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    OK(open_as(CORPUS_AUTO, in_dir("many"), 1000, 4));
    OK(corpus_read(&c, 0, 2 * N, got));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(got[2 * i], i);
        assert_int_equal(got[2 * i + 1], 2 * i);
    }
    write_shard("many/0190.bin", (const uint16_t[]){7, 7}, 2); /* found out when it is read */
    REFUSED(FSDP_EIO, corpus_read(&c, 380, 1, got), "0190.bin: was changed");
    assert_int_equal(unlink(in_dir("many/0191.bin")), 0);
    REFUSED(FSDP_EIO, corpus_read(&c, 382, 1, got), "0191.bin: No such file");
    corpus_close(&c);
}

/* ---- what is known before -------------------------------------------------------------------- */

static corpus_notes notes;

/* Change bytes of a file, but neither its length nor its time; its time of change is as known. */
static void change_secretly(const char *path, off_t at, const void *bytes, size_t n)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, n, at), n);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    assert_int_equal(fstat(fd, &st), 0);
    notes.files[1].ctime_ns = (uint64_t)(st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec);
    close(fd);
}

static fsdp_status open_known(const char *name, size_t vocab)
{
    const corpus_request r = {
        .path = in_dir(name), .vocab_limit = vocab, .seq_len = 4, .notes = notes};
    return corpus_open_file(&r, &c);
}

static const uint16_t A[] = {1, 2, 3}, B[] = {4, 5, 6, 7}, OTHER[] = {4, 5, 6, 8};

/* Write two shards, read them, and keep what is known of them. Returns the hash of the corpus. */
static uint64_t know_shards(void)
{
    mkdir(in_dir("known"), 0700);
    write_shard("known/a.bin", A, 3);
    write_shard("known/b.bin", B, 4);
    OK(open_as(CORPUS_AUTO, in_dir("known"), 10, 4));
    const uint64_t hash = corpus_hash(&c);
    notes = c.notes;
    c.notes.files = NULL; /* moved; the number of files stays, since their paths are freed */
    c.notes.blocks = NULL;
    corpus_close(&c);
    return hash;
}

TEST(test_notes)
{
    int32_t got[7];
    const uint64_t hash = know_shards();
    assert_int_equal(notes.n_files, 2);
    assert_int_equal(notes.n_blocks, 2);
    assert_string_equal(notes.files[1].name, "b.bin");
    assert_int_equal(notes.files[1].bytes, 1024 + 8);

    /* a file that is not read cannot be found to differ; its blocks are compared when used */
    change_secretly(in_dir("known/b.bin"), 1024 + 6, &OTHER[3], 2);
    OK(open_known("known", 10));
    assert_true(corpus_hash(&c) == hash);
    OK(corpus_read(&c, 0, 3, got));
    REFUSED(FSDP_EIO, corpus_read(&c, 0, 7, got), "b.bin: was changed");
    corpus_close(&c);

    /* without hashes of blocks, a block is checked when it is first read */
    memset(notes.blocks, 0, notes.n_blocks * sizeof *notes.blocks);
    OK(open_known("known", 10));
    OK(corpus_read(&c, 0, 7, got));
    assert_int_equal(got[6], 8);
    change_secretly(in_dir("known/b.bin"), 1024 + 6, &B[3], 2);
    REFUSED(FSDP_EIO, corpus_read(&c, 3, 4, got), "b.bin: was changed");
    corpus_close(&c);
    OK(open_known("known", 7));
    REFUSED(FSDP_EINVAL, corpus_read(&c, 0, 7, got), "b.bin: token 3: got 7, expected less than 7");
    corpus_close(&c);

    corpus_notes_free(&notes);
}

/* A file of another time is read: its tokens must be the same. */
TEST(test_notes_of_changed_files)
{
    const uint64_t hash = know_shards();
    assert_int_equal(utimensat(AT_FDCWD, in_dir("known/b.bin"), (struct timespec[2]){{0}}, 0), 0);
    OK(open_known("known", 10));
    assert_true(corpus_hash(&c) == hash);
    corpus_close(&c);
    write_shard("known/b.bin", OTHER, 4);
    FAILS(FSDP_EMISMATCH, open_known("known", 10), "b.bin: got tokens with the hash");
    write_shard("known/b.bin", B, 4);
    write_shard("known/c.bin", B, 4);
    FAILS(FSDP_EMISMATCH, open_known("known", 10), "known: got 3 files, expected 2");
    assert_int_equal(unlink(in_dir("known/c.bin")), 0);
    assert_int_equal(unlink(in_dir("known/b.bin")), 0);
    FAILS(FSDP_EMISMATCH, open_known("known", 10), "got 1 files, expected 2");
    corpus_notes_free(&notes);
    corpus_notes_free(&notes); /* a zeroed struct is accepted */
}

/* A file whose length and time were put back is read; so is any file of an older checkpoint. */
TEST(test_notes_of_secret_changes)
{
    for (int i = 0; i < 2; i++) {
        know_shards();
        const uint64_t before = notes.files[1].ctime_ns;
        change_secretly(in_dir("known/b.bin"), 1024 + 6, &OTHER[3], 2);
        OK(open_known("known", 10));
        corpus_close(&c);
        notes.files[1].ctime_ns = i == 0 ? before : 0;
        FAILS(FSDP_EMISMATCH, open_known("known", 10), "b.bin: got tokens with the hash");
        corpus_notes_free(&notes);
    }
}

TEST(test_mask)
{
    corpus_request r = {.path = write_bytes(in_dir("masked"), "To be, or", 9),
                        .mask = write_bytes(in_dir("mask"), "\0\1\0\377\0\0\1\0\2", 9),
                        .vocab_limit = 256,
                        .seq_len = 4};
    int32_t inputs[4], targets[4];
    OK(corpus_open_file(&r, &c));
    OK(sample_read(&c, 0, 4, inputs, targets));
    assert_memory_equal(targets, ((int32_t[]){'o', NO_TARGET, 'b', NO_TARGET}), sizeof targets);
    OK(sample_read(&c, 1, 4, inputs, targets));
    assert_memory_equal(targets, ((int32_t[]){NO_TARGET, ' ', NO_TARGET, 'r'}), sizeof targets);
    OK(sample_read(&c, 2, 4, inputs, targets));
    assert_int_equal(targets[0], 'o');
    corpus_close(&c);
    write_bytes(in_dir("mask"), "\1\1", 2);
    FAILS(FSDP_EINVAL, corpus_open_file(&r, &c), "got a mask of 2 bytes, expected 9");
}

/* ---- the licence texts ---------------------------------------------------------------------- */

TEST(test_texts)
{
    const char *note = NULL, *dir = in_dir("texts");
    assert_int_equal(mkdir(dir, 0700), 0);
    FAILS(FSDP_EIO, corpus_open_texts(dir, 1, &c, &note), "got a directory without files");
    write_bytes(in_dir("texts/b"), "second", 6);
    write_bytes(in_dir("texts/a"), "first", 5);
    write_bytes(in_dir("texts/empty"), "", 0);
    assert_int_equal(symlink("a", in_dir("texts/link")), 0);
    assert_int_equal(mkdir(in_dir("texts/sub"), 0700), 0);
    OK(corpus_open_texts(dir, 4, &c, &note));
    assert_tokens(1, "firstsecond", 11);
    assert_non_null(strstr(note, "differ from Debian 12's"));
    corpus_close(&c);
    FAILS(FSDP_EINVAL, corpus_open_texts(dir, 11, &c, &note), "got 11 bytes, expected at least 12");
    FAILS(FSDP_EIO, corpus_open_texts(in_dir("gone"), 4, &c, &note), "No such file");
    assert_non_null(strstr(fsdp_error_get()->hint, "--data"));
}

TEST(test_default)
{
    const char *note = NULL;
    if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) {
        print_message("SKIP test_default: no licence texts on this system\n");
        skip();
    }
    OK(corpus_open_texts(CORPUS_DEFAULT_DIR, 64, &c, &note));
    assert_int_equal(c.vocab_size, 256);
    assert_true(c.n_tokens > 35000); /* GPL-3 alone */
    /* the note is empty exactly on Debian 12's texts: 237,320 bytes */
    assert_int_equal(note[0] == '\0', c.n_tokens == 237320);
    corpus_close(&c);
}

/* ---- images ---------------------------------------------------------------------------------- */

enum { N_IMAGES = 5 };

#define IMAGES "mnist/train-images-idx3-ubyte"
#define LABELS "mnist/train-labels-idx1-ubyte"

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
    write_idx(IMAGES, 3, dims, N_IMAGES * IMAGE_PIXELS, 251);
    write_idx(LABELS, 1, dims, N_IMAGES, 10);
}

TEST(test_images)
{
    float pixels[IMAGE_PIXELS];
    int32_t label;
    write_images();
    OK(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c));
    assert_int_equal(c.n_tokens, N_IMAGES);
    for (uint64_t k = 0; k < 2 * N_IMAGES; k++) {
        const size_t first = k % N_IMAGES * IMAGE_PIXELS;
        OK(sample_read(&c, k, 1, pixels, &label));
        assert_int_equal(label, 7 * (k % N_IMAGES) % 10);
        for (size_t i = 0; i < IMAGE_PIXELS; i++) {
            const float grey = (float)(7 * (first + i) % 251) / 255.0f;
            assert_true(pixels[i] == (grey - 0.1307f) / 0.3081f);
        }
    }
    const uint64_t hash = corpus_hash(&c);
    corpus_close(&c);
    write_idx(LABELS, 1, (uint32_t[]){N_IMAGES}, N_IMAGES, 9); /* other labels, another hash */
    OK(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c));
    assert_true(corpus_hash(&c) != hash);
    corpus_close(&c);
}

/* The names that others give the files, and the folders that torchvision makes. */
TEST(test_images_elsewhere)
{
    static const char *const PLACES[][3] = {
        {"dots", "dots/train-images.idx3-ubyte", "dots/train-labels.idx1-ubyte"},
        {"tv/MNIST", "tv/MNIST/raw/train-images-idx3-ubyte",
         "tv/MNIST/raw/train-labels-idx1-ubyte"},
        {"tv", "tv/MNIST/raw/train-images-idx3-ubyte", "tv/MNIST/raw/train-labels-idx1-ubyte"},
        {"fashion[1]", "fashion[1]/FashionMNIST/raw/train-images-idx3-ubyte",
         "fashion[1]/FashionMNIST/raw/train-labels-idx1-ubyte"},
        {"tv/KMNIST", "tv/KMNIST/raw/train-images-idx3-ubyte",
         "tv/KMNIST/raw/train-labels-idx1-ubyte"}};
    const uint32_t dims[3] = {N_IMAGES, IMAGE_SIDE, IMAGE_SIDE};
    write_images();
    OK(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c));
    const uint64_t hash = corpus_hash(&c);
    corpus_close(&c);
    mkdir(in_dir("dots"), 0700);
    mkdir(in_dir("dots/train-images-idx3-ubyte"), 0700); /* as some archives are unpacked */
    mkdir(in_dir("tv"), 0700);
    mkdir(in_dir("tv/MNIST"), 0700);
    mkdir(in_dir("tv/MNIST/raw"), 0700);
    mkdir(in_dir("tv/KMNIST"), 0700);
    mkdir(in_dir("tv/KMNIST/raw"), 0700);
    mkdir(in_dir("fashion[1]"), 0700);
    mkdir(in_dir("fashion[1]/FashionMNIST"), 0700);
    mkdir(in_dir("fashion[1]/FashionMNIST/raw"), 0700);
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        write_idx(PLACES[i][1], 3, dims, N_IMAGES * IMAGE_PIXELS, 251);
        write_idx(PLACES[i][2], 1, dims, N_IMAGES, 10);
        OK(corpus_open_images(in_dir(PLACES[i][0]), false, NO_SHUFFLE, &c));
        assert_true(corpus_hash(&c) == hash);
        corpus_close(&c);
    }
    FAILS(FSDP_EINVAL, corpus_open_images(in_dir("tv"), false, NO_SHUFFLE, &c),
          "tv/MNIST/raw/train-images-idx3-ubyte, expected one set of images");
    write_idx("tv/train-images-idx3-ubyte", 3, dims, N_IMAGES * IMAGE_PIXELS, 251);
    write_idx("tv/train-labels-idx1-ubyte", 1, dims, N_IMAGES, 10);
    OK(corpus_open_images(in_dir("tv"), false, NO_SHUFFLE, &c)); /* it needs no search */
    corpus_close(&c);
    assert_int_equal(unlink(in_dir("tv/KMNIST/raw/train-labels-idx1-ubyte")), 0);
    FAILS(FSDP_EIO, corpus_open_images(in_dir("tv/KMNIST"), false, NO_SHUFFLE, &c),
          "tv/KMNIST/raw/train-labels-idx1-ubyte: No such file");
}

#ifdef FSDP_HAVE_ZLIB
/* zlib's gzdopen, which has no memory if the test says so. */
static bool no_gz_memory;
gzFile gzdopen(int fd, const char *mode)
{
    gzFile (*real)(int, const char *);
    void *found = dlsym(RTLD_NEXT, "gzdopen");
    memcpy(&real, &found, sizeof real);
    return no_gz_memory ? NULL : real(fd, mode);
}

TEST(test_images_without_memory)
{
    write_images();
    const int fd = dup(0);
    close(fd);
    no_gz_memory = true;
    FAILS(FSDP_EIO, corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c), "no host memory");
    no_gz_memory = false;
    assert_int_equal(dup(0), fd);
    close(fd);
}

TEST(test_images_packed)
{
    static const char *const NAMES[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"};
    static char bytes[N_IMAGES * IMAGE_PIXELS + 100];
    char path[300], packed[300];
    write_images();
    OK(corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c));
    const uint64_t hash = corpus_hash(&c);
    corpus_close(&c);
    mkdir(in_dir("gz"), 0700);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", in_dir("mnist"), NAMES[i]);
        snprintf(packed, sizeof packed, "%s/%s.gz", in_dir("gz"), NAMES[i]);
        FILE *in = fopen(path, "r");
        gzFile out = gzopen(packed, "wb");
        const size_t n = fread(bytes, 1, sizeof bytes, in);
        assert_int_equal(gzwrite(out, bytes, (unsigned)n), n);
        gzclose(out);
        fclose(in);
    }
    OK(corpus_open_images(in_dir("gz"), false, NO_SHUFFLE, &c));
    assert_true(corpus_hash(&c) == hash);
    corpus_close(&c);
    assert_int_equal(truncate(packed, 30), 0);
    FAILS(FSDP_EIO, corpus_open_images(in_dir("gz"), false, NO_SHUFFLE, &c), "is damaged");
}
#endif

/* Opening the folder must fail because of the file written last. Then the files are made good
 * again. */
static void refuses_images(const char *says)
{
    FAILS(FSDP_EINVAL, corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c), says);
    write_images();
}

TEST(test_images_refused)
{
    const uint32_t dims[3] = {N_IMAGES, IMAGE_SIDE, IMAGE_SIDE}, narrow[3] = {N_IMAGES, 28, 27};
    const uint32_t many[3] = {UINT32_MAX, IMAGE_SIDE, IMAGE_SIDE}, none[1] = {0}, four[1] = {4};
    write_images();
    write_idx(IMAGES, 3, narrow, N_IMAGES * 28 * 27, 251);
    refuses_images("got images of 28 x 27, expected 28 x 28");
    write_idx(IMAGES, 3, dims, N_IMAGES * IMAGE_PIXELS - 1, 251);
    refuses_images("got 3935 bytes, expected 3936 for the 5 images");
    write_idx(IMAGES, 3, many, IMAGE_PIXELS, 251);
    refuses_images("for the 4294967295 images");
    write_idx(IMAGES, 1, dims, N_IMAGES, 251);
    refuses_images("bytes that begin 00000801, expected at least 16 that begin 00000803");
    write_bytes(in_dir(IMAGES), "\x1f\x8b\x08\x08packed", 10);
#ifdef FSDP_HAVE_ZLIB
    FAILS(FSDP_EIO, corpus_open_images(in_dir("mnist"), false, NO_SHUFFLE, &c), "is damaged");
#else
    refuses_images("got 10 bytes that begin 1f8b0808, expected at least 16");
#endif
    write_bytes(in_dir(IMAGES), "", 0);
    refuses_images("got 0 bytes that begin 00000000");
    write_idx(LABELS, 1, four, 4, 10);
    refuses_images("got 4 labels, expected 5");
    write_idx(LABELS, 1, none, 0, 10);
    refuses_images("got 8 bytes");
    write_idx(LABELS, 1, dims, N_IMAGES, 29);
    refuses_images("label 2: got 14, expected 0 to 9");
    FAILS(FSDP_EIO, corpus_open_images(in_dir("mnist"), true, NO_SHUFFLE, &c),
          "mnist/t10k-images-idx3-ubyte: No such file");
    FAILS(FSDP_EINVAL, corpus_digits(0, 0, NO_SHUFFLE, &c), "drawn digits: got 0");
}

/* Every epoch has every element once, in its own order. Every seed has its own orders. */
TEST(test_shuffle)
{
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
    /* Two random orders agree in one of 1000 places on average; 12 places have the chance 6e-10. */
    assert_true(same < 12 && same_seed < 12 && fixed < 12);
}

/* A shuffled set gives each image once an epoch, in the order of shuffle_index. */
TEST(test_shuffled_images)
{
    corpus plain;
    float pixels[IMAGE_PIXELS], expected[IMAGE_PIXELS];
    int32_t label, expected_label;
    OK(corpus_digits(100, 6, NO_SHUFFLE, &plain));
    OK(corpus_digits(100, 6, 3, &c));
    for (uint64_t k = 0; k < 18; k++) {
        const size_t at = shuffle_index(3, k / 6, 6, k % 6);
        OK(sample_read(&c, k, 1, pixels, &label));
        OK(sample_read(&plain, at, 1, expected, &expected_label));
        assert_memory_equal(pixels, expected, sizeof pixels);
        assert_int_equal(label, expected_label);
    }
    corpus_close(&plain);
    corpus_close(&c);
}

/* The digits are the same on every machine, both for training and for evaluation: 200 of each. So
 * what was measured once still holds: a linear model, trained on 6000 digits until its loss no
 * longer fell, is right on less than 95% of 2000 others. */
TEST(test_digits)
{
    enum { N = 400 };
    static unsigned char pixels[N][IMAGE_PIXELS];
    int count[IMAGE_CLASSES] = {0};
    for (int i = 0; i < N; i++)
        count[digit_draw(i < 200 ? (uint64_t)i : ((uint64_t)1 << 40) + (uint64_t)i - 200,
                         pixels[i])]++;
    for (int d = 0; d < IMAGE_CLASSES; d++)
        assert_uint_in_range(count[d], 16, 80);
    for (int i = 1; i < N; i++)
        assert_memory_not_equal(pixels[i], pixels[i - 1], IMAGE_PIXELS);
    assert_true(XXH3_64bits(pixels, sizeof pixels) == DIGITS_HASH);
}

int main(void)
{
    return tests_run(temp_dir_make, temp_dir_remove);
}
