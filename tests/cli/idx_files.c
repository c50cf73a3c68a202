/* idx_files.c -- writes drawn digits in the format of MNIST's files.
 *
 *   idx_files DIR SET FIRST N        SET: train or t10k
 *
 * Writes digits FIRST ... FIRST + N-1 to DIR/SET-images-idx3-ubyte, and their values to
 * DIR/SET-labels-idx1-ubyte. A header is 0, 0, 8 and the number of dimensions, then each dimension,
 * in big-endian order. */
#include <stdio.h>
#include <stdlib.h>
#include "common/data/data_impl.h"

static void put_header(FILE *out, size_t n, int n_dims)
{
    const size_t words[] = {0x800 + (size_t)n_dims, n, IMAGE_SIDE, IMAGE_SIDE};
    for (int i = 0; i < 1 + n_dims; i++)
        for (int shift = 24; shift >= 0; shift -= 8)
            fputc((int)(words[i] >> shift & 255), out);
}

static FILE *create(const char *dir, const char *set, const char *kind)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%s-ubyte", dir, set, kind);
    FILE *out = fopen(path, "wb");
    if (out == NULL)
        perror(path);
    return out;
}

static int write_files(FILE *images, FILE *labels, uint64_t first, size_t n)
{
    put_header(images, n, 3);
    put_header(labels, n, 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char pixels[IMAGE_PIXELS];
        fputc(digit_draw(first + i, pixels), labels);
        fwrite(pixels, 1, sizeof pixels, images);
    }
    return fclose(images) == 0 && fclose(labels) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "idx_files DIR SET FIRST N: got %d arguments\n", argc - 1);
        return 2;
    }
    FILE *images = create(argv[1], argv[2], "images-idx3");
    FILE *labels = create(argv[1], argv[2], "labels-idx1");
    if (images == NULL || labels == NULL)
        return 1;
    return write_files(images, labels, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
}
