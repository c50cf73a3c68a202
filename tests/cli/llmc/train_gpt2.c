/* train_gpt2.c -- a stand-in for llm.c's trainer in tests/cli/llmc.sh: reads what llmc_files writes
 * and prints lines like that trainer. It has no code of llm.c.
 *
 * It checks the headers and lengths of the files and that all batches of a shard are equal. It
 * computes the loss of one batch; a tensor that is misplaced or not transposed changes this loss.
 * It does not train: every step prints the same loss. The times are made up: two cold steps, then
 * 20, 30, 40, 50 ms ... Output is not flushed, and the seventh step never ends, like a run that
 * takes too long. The argument is the number of steps (41); -DOFF=0.1 makes the loss wrong. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef OFF
#define OFF 0
#endif

enum { BATCH = 4, T = 64, TOKENS = BATCH * T, HEADER = 256, MAX_SHARD = 1 << 20, STEPS = 41 };

static int n_positions, vocab, n_layer, n_head, C, rows_of_wte;
static uint16_t shard[MAX_SHARD];

static void need(int condition, const char *what)
{
    if (condition)
        return;
    printf("stand-in: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static FILE *open_file(const char *path, int32_t magic, int32_t version, int32_t header[HEADER])
{
    FILE *f = fopen(path, "rb");
    need(f != NULL, path);
    need(fread(header, sizeof *header, HEADER, f) == HEADER, "short header");
    need(header[0] == magic && header[1] == version, "magic or version");
    return f;
}

/* Reads the shard into `shard`; every batch of the shard must be equal to the first. */
static void read_tokens(const char *path)
{
    int32_t header[HEADER];
    FILE *f = open_file(path, 20240520, 1, header);
    size_t n = (size_t)header[2];
    need(n > (STEPS + 1) * TOKENS && n <= MAX_SHARD, "number of tokens");
    need(fread(shard, sizeof *shard, n, f) == n && fgetc(f) == EOF, "length of the shard");
    for (size_t i = 0; i < n; i++)
        need(shard[i] == shard[i % TOKENS], "batches differ");
    need(memcmp(shard, shard + 1, TOKENS) != 0, "one token only");
    fclose(f);
}

static float *read_model(void)
{
    int32_t header[HEADER];
    FILE *f = open_file("gpt2_124M.bin", 20240326, 3, header);
    n_positions = header[2], vocab = header[3], n_layer = header[4];
    n_head = header[5], C = header[6], rows_of_wte = header[7];
    need(rows_of_wte % 128 == 0 && rows_of_wte >= vocab && rows_of_wte < vocab + 128, "padding");
    size_t c = (size_t)C, n = (size_t)(rows_of_wte + n_positions) * c + 2 * c;
    n += (size_t)n_layer * (12 * c * c + 13 * c);
    float *all = malloc(n * sizeof *all);
    need(all != NULL && fread(all, sizeof *all, n, f) == n, "parameters are missing");
    need(fgetc(f) == EOF, "more than the parameters");
    fclose(f);
    return all;
}

/* The next tensor of `elems` floats. */
static const float *take(const float **next, size_t elems)
{
    const float *tensor = *next;
    *next += elems;
    return tensor;
}

static void norm(float *out, const float *in, const float *gain, const float *bias)
{
    for (int t = 0; t < T; t++, in += C, out += C) {
        double mean = 0, var = 0;
        for (int i = 0; i < C; i++)
            mean += in[i] / (double)C;
        for (int i = 0; i < C; i++)
            var += (in[i] - mean) * (in[i] - mean) / C;
        for (int i = 0; i < C; i++)
            out[i] = (float)((in[i] - mean) / sqrt(var + 1e-5)) * gain[i] + bias[i];
    }
}

/* out [T, n_out] = in [T, n_in] * w [n_out, n_in] transposed + b */
static void linear(float *out, const float *in, const float *w, const float *b, int n_in, int n_out)
{
    for (int t = 0; t < T; t++)
        for (int o = 0; o < n_out; o++) {
            double sum = b[o];
            for (int i = 0; i < n_in; i++)
                sum += (double)in[t * n_in + i] * w[(size_t)o * (size_t)n_in + (size_t)i];
            out[t * n_out + o] = (float)sum;
        }
}

/* x [T, C] += y */
static void add(float *x, const float *y)
{
    for (int i = 0; i < T * C; i++)
        x[i] += y[i];
}

static void attend(float *out, const float *qkv)
{
    const int d = C / n_head;
    for (int h = 0; h < n_head; h++)
        for (int t = 0; t < T; t++) {
            double p[T], total = 0;
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int i = 0; i < d; i++)
                    dot += (double)qkv[t * 3 * C + h * d + i] * qkv[s * 3 * C + C + h * d + i];
                total += p[s] = exp(dot / sqrt(d));
            }
            for (int i = 0; i < d; i++) {
                double sum = 0;
                for (int s = 0; s <= t; s++)
                    sum += p[s] / total * qkv[s * 3 * C + 2 * C + h * d + i];
                out[t * C + h * d + i] = (float)sum;
            }
        }
}

/* Cross-entropy summed over a sequence; x [T, C] is the input of the head. */
static double head_loss(const float *x, const float *wte, const uint16_t *target)
{
    double loss = 0;
    for (int t = 0; t < T; t++) {
        double total = 0, wanted = 0;
        for (int v = 0; v < vocab; v++) {
            double logit = 0;
            for (int i = 0; i < C; i++)
                logit += (double)x[t * C + i] * wte[v * C + i];
            total += exp(logit);
            wanted = v == target[t] ? logit : wanted;
        }
        loss += log(total) - wanted;
    }
    return loss;
}

static float *array(int elems)
{
    float *a = calloc((size_t)elems, sizeof *a);
    need(a != NULL, "no memory");
    return a;
}

/* all: the parameters in llm.c's order; token [T + 1] */
static double sequence_loss(const float *all, const uint16_t *token)
{
    const size_t c = (size_t)C, n = (size_t)n_layer;
    const float *wte = take(&all, (size_t)rows_of_wte * c),
                *wpe = take(&all, (size_t)n_positions * c);
    const float *gain1 = take(&all, n * c), *bias1 = take(&all, n * c);
    const float *w_qkv = take(&all, n * 3 * c * c), *b_qkv = take(&all, n * 3 * c);
    const float *w_proj = take(&all, n * c * c), *b_proj = take(&all, n * c);
    const float *gain2 = take(&all, n * c), *bias2 = take(&all, n * c);
    const float *w_up = take(&all, n * 4 * c * c), *b_up = take(&all, n * 4 * c);
    const float *w_down = take(&all, n * 4 * c * c), *b_down = take(&all, n * c);
    const float *gain = take(&all, c), *bias = take(&all, c);
    float *x = array(T * C), *y = array(T * C), *wide = array(T * 4 * C);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < C; i++)
            x[t * C + i] = wte[token[t] * C + i] + wpe[t * C + i];
    for (size_t l = 0; l < n; l++) {
        norm(y, x, gain1 + l * c, bias1 + l * c);
        linear(wide, y, w_qkv + l * 3 * c * c, b_qkv + l * 3 * c, C, 3 * C);
        attend(y, wide);
        linear(wide, y, w_proj + l * c * c, b_proj + l * c, C, C);
        add(x, wide);
        norm(y, x, gain2 + l * c, bias2 + l * c);
        linear(wide, y, w_up + l * 4 * c * c, b_up + l * 4 * c, C, 4 * C);
        for (int i = 0; i < T * 4 * C; i++)
            wide[i] *= 0.5f * (1 + tanhf(0.7978845608f * (wide[i] + 0.044715f * powf(wide[i], 3))));
        linear(y, wide, w_down + l * 4 * c * c, b_down + l * c, 4 * C, C);
        add(x, y);
    }
    norm(y, x, gain, bias);
    double loss = head_loss(y, wte, token + 1);
    free(wide), free(y), free(x);
    return loss;
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : STEPS;
    float *all = read_model();
    read_tokens("dev/data/tinyshakespeare/tiny_shakespeare_val.bin");
    read_tokens("dev/data/tinyshakespeare/tiny_shakespeare_train.bin");
    const uint16_t *batch = shard + STEPS * TOKENS;
    double loss = 0;
    for (int b = 0; b < BATCH; b++)
        loss += sequence_loss(all, batch + b * T) / TOKENS;
    free(all);
    loss += OFF;
    printf("val loss %f\n", loss);
    for (int step = 0; step < steps; step++) {
        if (step > 5) {
            alarm(60); /* the process ends in any case */
            pause();
        }
        printf("step %d: train loss %f (took %f ms)\n", step, loss,
               step < 2 ? 9999.0 : 10.0 * step);
    }
    return 0;
}
