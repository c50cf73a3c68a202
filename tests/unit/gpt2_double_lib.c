/* gpt2_double_lib.c -- see gpt2_double_lib.h. One sequence after the other, loops over elements. */
#include "tests/unit/gpt2_double_lib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIM = 512 }; /* the largest width here */

static void norm_row(double *out, const double *in, const double *gain, const double *bias,
                     size_t n, double eps)
{
    double mean = 0.0, var = 0.0;
    for (size_t i = 0; i < n; i++)
        mean += in[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        var += (in[i] - mean) * (in[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        out[i] = (in[i] - mean) / sqrt(var + eps) * gain[i] + bias[i];
}

static void linear_row(double *out, const double *in, const double *w, const double *b, size_t n_in,
                       size_t n_out)
{
    for (size_t j = 0; j < n_out; j++) {
        out[j] = b[j];
        for (size_t i = 0; i < n_in; i++)
            out[j] += in[i] * w[i * n_out + j];
    }
}

/* out[C] for query position t of one head after the other; qkv [T,3C]. */
static void attention_row(double *out, const double *qkv, size_t t, size_t n_head, size_t width)
{
    const size_t D = width / n_head;
    for (size_t h = 0; h < n_head; h++) {
        double p[MAX_DIM], sum = 0.0;
        for (size_t u = 0; u <= t; u++) {
            double dot = 0.0;
            for (size_t d = 0; d < D; d++)
                dot += qkv[t * 3 * width + h * D + d] * qkv[u * 3 * width + width + h * D + d];
            p[u] = exp(dot / sqrt((double)D));
            sum += p[u];
        }
        for (size_t d = 0; d < D; d++) {
            out[h * D + d] = 0.0;
            for (size_t u = 0; u <= t; u++)
                out[h * D + d] += p[u] / sum * qkv[u * 3 * width + 2 * width + h * D + d];
        }
    }
}

static void block(const model_config *c, double *const *w, double *x, size_t T)
{
    const size_t C = c->d_model, F = c->d_ff;
    double *qkv = calloc(T * 3 * C, sizeof *qkv), n[MAX_DIM], y[MAX_DIM], z[MAX_DIM];
    for (size_t t = 0; t < T; t++) {
        norm_row(n, x + t * C, w[0], w[1], C, (double)c->norm_eps);
        linear_row(qkv + t * 3 * C, n, w[2], w[3], C, 3 * C);
    }
    for (size_t t = 0; t < T; t++) {
        attention_row(y, qkv, t, c->n_head, C);
        linear_row(z, y, w[4], w[5], C, C);
        for (size_t i = 0; i < C; i++)
            x[t * C + i] += z[i];
        norm_row(n, x + t * C, w[6], w[7], C, (double)c->norm_eps);
        linear_row(y, n, w[8], w[9], C, F);
        for (size_t i = 0; i < F; i++)
            y[i] = 0.5 * y[i] * (1.0 + tanh(sqrt(2.0 / M_PI) * (y[i] + 0.044715 * pow(y[i], 3))));
        linear_row(z, y, w[10], w[11], F, C);
        for (size_t i = 0; i < C; i++)
            x[t * C + i] += z[i];
    }
    free(qkv);
}

double gpt2_double_loss(const model *m, double *const *params, const gpt2_double_batch *in,
                        double *logits)
{
    const model_config *c = &m->config;
    const size_t C = c->d_model, V = c->vocab_size, T = in->seq_len;
    double *const *head = params + 2 + 12 * c->n_blocks;
    double *x = calloc(T * C, sizeof *x), *z = calloc(V, sizeof *z), loss = 0.0;
    for (size_t b = 0; b < in->batch; b++) {
        for (size_t i = 0; i < T * C; i++)
            x[i] = params[0][(size_t)in->tokens[b * T + i / C] * C + i % C] + params[1][i];
        for (size_t l = 0; l < c->n_blocks; l++)
            block(c, params + 2 + 12 * l, x, T);
        for (size_t t = 0; t < T; t++) {
            double n[MAX_DIM], sum = 0.0;
            norm_row(n, x + t * C, head[0], head[1], C, (double)c->norm_eps);
            for (size_t v = 0; v < V; v++) {
                z[v] = 0.0;
                for (size_t i = 0; i < C; i++)
                    z[v] += n[i] * params[0][v * C + i];
                sum += exp(z[v]);
            }
            loss += log(sum) - z[in->targets[b * T + t]];
            if (logits != NULL)
                memcpy(logits + (b * T + t) * V, z, V * sizeof *z);
        }
    }
    free(x);
    free(z);
    return loss;
}
