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

enum { EVAL_SEQUENCES = 128 };
enum { IMAGE_SIDE = 28, IMAGE_PIXELS = IMAGE_SIDE * IMAGE_SIDE, IMAGE_CLASSES = 10 };

/* What the bytes of a file are. AUTO looks at the first file: llm.c's shards, or a text, whose
 * bytes are its tokens. */
typedef enum corpus_format {
    CORPUS_AUTO,
    CORPUS_BYTES,
    CORPUS_LLMC,   /* llm.c's shards, of 16- or 32-bit tokens */
    CORPUS_UINT16, /* tokens without a header, little-endian */
    CORPUS_UINT32
} corpus_format;
#define CORPUS_FORMATS "auto|bytes|llmc|uint16|uint32"

/* A file of a corpus, as it was when its tokens were hashed. */
typedef struct corpus_print {
    uint64_t ctime_ns; /* when it was changed, which no program can set back; 0: unknown */
    char name[256];    /* without its folder; zeros after its end */
    uint64_t bytes, mtime_ns, hash;
} corpus_print;

/* What is known of the files of a corpus: by itself or, before it is opened, from a checkpoint or
 * from rank 0. A file whose name, length and times are in the list is not read; any other must have
 * the hash of its place. */
typedef struct corpus_notes {
    corpus_print *files; /* [n_files], owned */
    size_t n_files;      /* 0: nothing is known */
    uint64_t *blocks;    /* [n_blocks], owned: the hashes of all blocks, file by file; 0: unknown */
    size_t n_blocks;
    uint64_t hash; /* of all tokens */
} corpus_notes;

/* corpus_notes_free -- a zeroed struct is accepted. */
void corpus_notes_free(corpus_notes *notes);

typedef struct corpus {
    size_t n_tokens;   /* or the number of images */
    size_t vocab_size; /* tokens are < vocab_size (256 for bytes); images: number of classes */
    struct image_set *images;  /* NULL: the corpus has tokens */
    void *tokens;              /* synthetic: [n_tokens] of token_bytes each; else NULL */
    struct corpus_file *files; /* [notes.n_files]; NULL if there are none */
    corpus_notes notes;        /* of the files */
    struct corpus *mask;       /* owned; a byte for each token. NULL: none */
    struct XXH3_state_s *sum;  /* running hash of all tokens of the files */
    corpus_format format;
    int token_bytes;  /* 1, 2 or 4 */
    char source[256]; /* for the log: path or description */
} corpus;

/* Which corpus to open, and what it must be. */
typedef struct corpus_request {
    const char *path;
    const char *mask; /* NULL, or the path of bytes that say which tokens count as targets */
    corpus_format format;
    size_t vocab_limit; /* every token must be less; becomes the vocab_size of tokens */
    size_t seq_len;
    const char *tokenizer; /* NULL, or whose tokens are wanted, so that AUTO refuses a text */
    corpus_notes notes, mask_notes; /* borrowed */
    bool no_links;                  /* of a directory, leave links out */
} corpus_request;

/* corpus_open_file -- open a text file or files of tokens, and their mask.
 *   path    a file, or a glob or directory, whose files are joined in name order: of a directory
 *           the files named *.bin or, if another format is named, all files, without hidden ones.
 * Every file that request->notes do not know is read once and checked. Sequences are read from the
 *           files, so that the ranks of a host share the kernel's page cache. The first 64 files
 *           stay open, and may be removed or replaced afterwards; if a file is written to,
 *           sample_read fails
 *   mask    likewise; its files together have a byte for each token, 0 if the token does not count
 *   errors  FSDP_EIO: missing or unreadable; FSDP_EINVAL: another format, a bad header, a token >=
 *           vocab_limit, fewer than seq_len + 1 tokens, or a mask of another length;
 * FSDP_EMISMATCH: a file has other tokens than request->notes say; FSDP_ENOMEM */
fsdp_status corpus_open_file(const corpus_request *request, corpus *out);
/* corpus_open_texts -- open the regular files of `dir`, read as bytes and joined in name order. The
 * default corpus is the licence texts of CORPUS_DEFAULT_DIR (237 kB of English on Debian 12).
 *   *note   "", or a static sentence saying that the texts differ from Debian 12's
 *   errors  as corpus_open_file */
#define CORPUS_DEFAULT_DIR "/usr/share/common-licenses"
fsdp_status corpus_open_texts(const char *dir, size_t seq_len, corpus *out, const char **note);

/* tokenizer_in -- whether a model's folder has a tokenizer, so that its tokens are not bytes. */
bool tokenizer_in(const char *dir);

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
 *   targets  tokens: [T], NO_TARGET where c->mask has 0; images: [1], the label, with seq_len 1
 *   errors   FSDP_EIO: that part of the file has changed since the corpus was opened (the hash of
 *            each block read is checked); never for images or a synthetic corpus */
fsdp_status sample_read(const corpus *c, uint64_t k, size_t seq_len, void *inputs,
                        int32_t *targets);
/* corpus_eval_samples -- the most samples that an evaluation reads unless it is given a number:
 * EVAL_SEQUENCES sequences, or all images. */
size_t corpus_eval_samples(const corpus *c);
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
