/* data.h -- training data: one stream of tokens, or a set of labelled images, read by samples.
 *
 *   corpus_open_file | corpus_open_texts | corpus_synthetic | corpus_open_images | corpus_digits
 *   -> sample_read ... -> corpus_close
 *
 * The data order is fixed, so that another program can replay a run. The corpus has n tokens, and
 * T = seq_len. Sequence k, counted over the whole run, global batch after global batch, reads
 * inputs o ... o+T-1 and targets o+1 ... o+T, with o = (k*T) mod (floor((n-1)/T)*T). Worked
 * example: n=10, T=4: k=0 -> 0, 1 -> 4, 2 -> 0.
 *
 * For n images, sample k is image k mod n of epoch k / n. If the set is shuffled, each epoch has
 * its own order (shuffle_index); otherwise every epoch has the order of the files. Unlike PyTorch's
 * DistributedSampler, no epoch is padded or cut: a global batch may begin in one epoch and end in
 * the next. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

enum { IMAGE_SIDE = 28, IMAGE_PIXELS = IMAGE_SIDE * IMAGE_SIDE, IMAGE_CLASSES = 10 };

typedef struct corpus {
    size_t n_tokens;   /* or the number of images */
    size_t vocab_size; /* tokens are < vocab_size (256 for bytes); images: number of classes */
    struct image_set *images;  /* NULL: the corpus has tokens */
    void *tokens;              /* synthetic: [n_tokens] of token_bytes each; else NULL */
    struct corpus_file *files; /* [n_files] open files; NULL if there are none */
    size_t n_files;
    struct XXH3_state_s *sum; /* running hash of all tokens of the files */
    int token_bytes;          /* 1 or 2 */
    char source[256];         /* for the log: path or description */
} corpus;

/* corpus_open_file -- open a text file, read as bytes, or llm.c's token files (.bin).
 *   path         a text, a token file (magic 20240520), or a glob or directory of token files,
 *                which are joined in name order. Every file is read once and checked. The files
 *                stay open, and sequences are read from them, so that the ranks of a host share
 *                the kernel's page cache. Files may be removed or replaced afterwards; if one is
 *                written to, sample_read fails
 *   vocab_limit  every token must be less; becomes the vocab_size of token files
 *   errors       FSDP_EIO: missing or unreadable; FSDP_EINVAL: a bad header, a token >=
 *                vocab_limit, or fewer than seq_len + 1 tokens; FSDP_ENOMEM */
fsdp_status corpus_open_file(const char *path, size_t vocab_limit, size_t seq_len, corpus *out);

/* corpus_open_texts -- open the regular files of `dir`, read as bytes and joined in name order. The
 * default corpus is the licence texts of CORPUS_DEFAULT_DIR (237 kB of English on Debian 12).
 *   *note   "", or a static sentence saying that the texts differ from Debian 12's
 *   errors  as corpus_open_file */
#define CORPUS_DEFAULT_DIR "/usr/share/common-licenses"
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);

/* corpus_synthetic -- generate n tokens of order-2 Markov text over `vocab` symbols from Philox, in
 * this process's memory. They are the same on every machine; tests and reference losses use them.
 *   errors  FSDP_EINVAL: n_tokens is 0, vocab is not 1 ... 65536; FSDP_ENOMEM */
fsdp_status corpus_synthetic(uint64_t seed, size_t n_tokens, size_t vocab, corpus *out);
/* corpus_check_length -- FSDP_EINVAL unless c holds one sequence of seq_len and its last target. */
fsdp_status corpus_check_length(const corpus *c, size_t seq_len);
/* corpus_close -- free tokens and images, close the files; a zeroed struct is accepted. */
void corpus_close(corpus *c);

/* corpus_hash -- a hash of all tokens or images, as they were when the corpus was opened. */
uint64_t corpus_hash(const corpus *c);

/* corpus_open_images -- read the images and labels in a folder of MNIST's format (IDX) into this
 * process's memory: train-images-idx3-ubyte and train-labels-idx1-ubyte, or with `test`
 * t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte.
 *   shuffle_seed  seed of the epochs' orders; NO_SHUFFLE: the order of the files
 *   errors        FSDP_EIO: missing or unreadable; FSDP_EINVAL: another format, images that are not
 *                 28 x 28, a label above 9, or not as many labels as images; FSDP_ENOMEM */
#define NO_SHUFFLE UINT64_MAX
fsdp_status corpus_open_images(const char *dir, bool test, uint64_t shuffle_seed, corpus *out);
/* corpus_digits -- n drawn digits that look handwritten. A digit is drawn when it is read, the same
 * on every machine.
 *   begin   number of the first digit. Digits with different numbers are different pictures, so a
 *           test set uses numbers that no training set reaches
 *   errors  FSDP_EINVAL: n is 0; FSDP_ENOMEM */
fsdp_status corpus_digits(uint64_t begin, size_t n, uint64_t shuffle_seed, corpus *out);

/* sample_read -- read the model's inputs of sample k, and its targets, to host memory.
 *   inputs   tokens: int32 [T]; images: fp32 [IMAGE_PIXELS], (pixel/255 - 0.1307) / 0.3081 (mean
 *            and standard deviation of MNIST's training set)
 *   targets  tokens: [T]; images: [1], the label, with seq_len 1
 *   errors   FSDP_EIO: that part of the file has changed since the corpus was opened (the hash of
 *            each block read is checked); never for images or a synthetic corpus */
fsdp_status sample_read(const corpus *c, uint64_t k, size_t seq_len, void *inputs,
                        int32_t *targets);
/* corpus_samples -- the number of different samples: sequences of seq_len with their targets, or
 * images; n_tokens must be more than seq_len (asserted). */
size_t corpus_samples(const corpus *c, size_t seq_len);
/* sample_offset -- o of the formula above; n_tokens must be more than seq_len (asserted). */
size_t sample_offset(size_t n_tokens, uint64_t k, size_t seq_len);
/* shuffle_index -- which of n elements is at position `at` in the order of an epoch; at < n
 * (asserted). Each seed and epoch gives a permutation of 0 ... n-1. A position is computed without
 * the others.
 *   source  [Luby & Rackoff 1988] */
size_t shuffle_index(uint64_t seed, uint64_t epoch, size_t n, size_t at);
