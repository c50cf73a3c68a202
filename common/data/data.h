/* data.h -- one token stream, or a set of labelled images, and which part of it sample k reads.
 *
 *   corpus_open_file | corpus_open_texts | corpus_synthetic | corpus_open_images | corpus_digits
 *   -> sample_read ... -> corpus_close
 *
 * The data order is fixed, so that another program can replay a run. The corpus has n tokens.
 * Sequence k, counted over the whole run, global batch after global batch, reads tokens o ... o+T-1
 * and targets o+1 ... o+T, with o = (k*T) mod (floor((n-1)/T)*T). Worked example: n=10, T=4: k=0 ->
 * 0, 1 -> 4, 2 -> 0.
 *
 * Of n images, sample k is image number k mod n of epoch k / n. Each epoch has an order of its own
 * (shuffle_index) if the set is shuffled; else every epoch is in the order of the files. Unlike
 * PyTorch's DistributedSampler no epoch is padded or cut: a global batch may begin in one epoch and
 * end in the next. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

enum { IMAGE_SIDE = 28, IMAGE_PIXELS = IMAGE_SIDE * IMAGE_SIDE, IMAGE_CLASSES = 10 };

typedef struct corpus {
    size_t n_tokens;   /* of images: how many there are */
    size_t vocab_size; /* tokens are < vocab_size, which is 256 for bytes; of images: classes */
    struct image_set *images; /* NULL: the corpus has tokens */
    void *tokens;             /* [n_tokens] of token_bytes each, of a synthetic corpus; else NULL */
    struct corpus_file *files; /* [n_files], open; a corpus of files */
    size_t n_files;
    struct XXH3_state_s *sum; /* of all tokens of the files */
    int token_bytes;          /* 1 or 2 */
    char source[256];         /* for the log: path or description */
} corpus;

/* corpus_open_file -- open a text file, read as bytes, or llm.c's token files (.bin).
 *   path         a text, a token file (magic 20240520), or a glob or directory of token files,
 *                which are read one after the other. All of them is read once, and checked. The
 *                files stay open, and sequences are read from them: all ranks of a host share the
 *                kernel's copy. They may be removed or replaced afterwards; see sample_read for
 *                a file that is written to
 *   vocab_limit  every token must be below it; the vocab_size of token files
 *   errors       FSDP_EIO: missing or unreadable; FSDP_EINVAL: a bad header, a token >=
 *                vocab_limit, or too short for one sequence of seq_len; FSDP_ENOMEM */
fsdp_status corpus_open_file(const char *path, size_t vocab_limit, size_t seq_len, corpus *out);

/* corpus_open_texts -- the regular files of `dir`, read as bytes and joined in name order. The
 * default corpus is the licence texts of CORPUS_DEFAULT_DIR (237 kB of English on Debian 12).
 *   *note   "", or a sentence saying that the texts differ from Debian 12's; static
 *   errors  as corpus_open_file */
#define CORPUS_DEFAULT_DIR "/usr/share/common-licenses"
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);

/* corpus_synthetic -- n tokens of order-2 Markov text over `vocab` symbols, from Philox: the same
 * on every machine. Tests and reference losses use it. They are in this process's memory.
 *   errors  FSDP_EINVAL: n_tokens is 0, vocab is not 1 ... 65536; FSDP_ENOMEM */
fsdp_status corpus_synthetic(uint64_t seed, size_t n_tokens, size_t vocab, corpus *out);
/* corpus_check_length -- FSDP_EINVAL unless c holds one sequence of seq_len and its last target. */
fsdp_status corpus_check_length(const corpus *c, size_t seq_len);
/* corpus_close -- free the tokens, close the files; a zeroed struct is accepted. */
void corpus_close(corpus *c);

/* corpus_hash -- XXH3 of all tokens, as they were read when the corpus was opened. */
uint64_t corpus_hash(const corpus *c);

/* corpus_open_images -- the images and labels of a folder in MNIST's format (IDX), all read into
 * this process's memory: train-images-idx3-ubyte and train-labels-idx1-ubyte, or with `test`
 * t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte.
 *   shuffle_seed  of the epochs' orders; NO_SHUFFLE: none
 *   errors        FSDP_EIO: missing or unreadable; FSDP_EINVAL: another format, images that are not
 *                 28 x 28, a label from 10 on, or not as many labels as images; FSDP_ENOMEM */
#define NO_SHUFFLE UINT64_MAX
fsdp_status corpus_open_images(const char *dir, bool test, uint64_t shuffle_seed, corpus *out);
/* corpus_digits -- n digits as somebody might write them, drawn when they are read, on every
 * machine the same.
 *   begin   number of the first. Each number has a digit of its own, so a test set begins where no
 *           training set ends
 *   errors  FSDP_EINVAL: n is 0; FSDP_ENOMEM */
fsdp_status corpus_digits(uint64_t begin, size_t n, uint64_t shuffle_seed, corpus *out);

/* sample_read -- what the model reads of sample k, and its targets (host).
 *   inputs   tokens: int32 [T]; images: fp32 [IMAGE_PIXELS], (pixel/255 - 0.1307) / 0.3081, by mean
 *            and deviation of MNIST's training set
 *   targets  tokens: [T]; images: [1], the label. seq_len is 1
 *   errors   FSDP_EIO: the part of the file is no longer what it was when the corpus was opened
 *            (checked by a hash for each block that is read); never for images and a synthetic
 *            corpus */
fsdp_status sample_read(const corpus *c, uint64_t k, size_t seq_len, void *inputs,
                        int32_t *targets);
/* sample_offset -- o of the formula above; n_tokens must be more than seq_len (asserted). */
size_t sample_offset(size_t n_tokens, uint64_t k, size_t seq_len);
/* shuffle_index -- where element `at` of n stands in the order of an epoch, at < n (asserted). For
 * each seed and epoch that is a permutation of 0 ... n-1. Any element is computed without the
 * others. source  [Luby & Rackoff 1988] */
size_t shuffle_index(uint64_t seed, uint64_t epoch, size_t n, size_t at);
