/* progress.c -- redraw one line on a terminal, or write at most about 50 lines to a log. */
#include "common/observe/progress.h"
#include <math.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/base/units.h"

enum { LOG_LINES = 50, LINE_BYTES = 256 };
static const double REDRAW_S = 0.1;
static const double SMOOTHING = 0.1; /* weight of the newest step in the moving mean of its time */

struct progress {
    FILE *out;
    bool is_terminal;
    int64_t total_steps, per_step;
    const char *unit;
    int64_t log_every; /* steps */
    double mean_ms;    /* moving mean; 0 before the first step */
    double drawn_s;    /* when the line was last drawn; 0: never */
};

/* "45s", "3m20s", "2h05m", "3d04h": at most two units, which is precise enough. */
static void format_duration(double seconds, char *buf, size_t buf_bytes)
{
    if (!(seconds < 1e9)) { /* NaN too */
        snprintf(buf, buf_bytes, "?");
        return;
    }
    long s = (long)(seconds + 0.5);
    if (s < 60)
        snprintf(buf, buf_bytes, "%lds", s);
    else if (s < 3600)
        snprintf(buf, buf_bytes, "%ldm%02lds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, buf_bytes, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(buf, buf_bytes, "%ldd%02ldh", s / 86400, s / 3600 % 24);
}

static void format_rate(double per_s, char *buf, size_t buf_bytes)
{
    if (!(per_s < 1e15))
        snprintf(buf, buf_bytes, "?");
    else if (per_s < 9999.5)
        snprintf(buf, buf_bytes, "%.0f", per_s);
    else if (per_s < 999.5e3)
        snprintf(buf, buf_bytes, "%.0fk", per_s * 1e-3);
    else
        snprintf(buf, buf_bytes, "%.1fM", per_s * 1e-6);
}

progress *progress_open(FILE *out, int64_t total_steps, int64_t per_step, const char *unit,
                        bool is_rank0)
{
    progress *p = is_rank0 ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    p->out = out;
    p->is_terminal = isatty(fileno(out)) == 1;
    p->total_steps = total_steps;
    p->per_step = per_step;
    p->unit = unit;
    p->log_every = total_steps <= LOG_LINES ? 1 : (total_steps + LOG_LINES - 1) / LOG_LINES;
    return p;
}

static void draw_on_terminal(progress *p, char *line, bool is_last)
{
    double now = clock_now_s();
    if (p->drawn_s > 0 && now - p->drawn_s < REDRAW_S && !is_last)
        return;
    p->drawn_s = now;
    struct winsize window;
    int columns = 80;
    if (ioctl(fileno(p->out), TIOCGWINSZ, &window) == 0 && window.ws_col > 1)
        columns = window.ws_col;
    /* A line that wraps cannot be redrawn. \033[K erases the rest of a longer previous line. */
    fprintf(p->out, "\r%.*s\033[K", columns - 1, line);
    fflush(p->out);
}

void progress_step(progress *p, int64_t step, double loss, double grad_norm, double ms,
                   size_t mem_bytes)
{
    if (!p)
        return;
    int64_t steps_done = step + 1;
    bool is_last = steps_done >= p->total_steps;
    p->mean_ms = p->mean_ms > 0 ? p->mean_ms + SMOOTHING * (ms - p->mean_ms) : ms;
    if (!p->is_terminal && step != 0 && !is_last && steps_done % p->log_every != 0)
        return;

    char norm[40] = "", rate[24], eta[24], memory[24] = "", line[LINE_BYTES];
    if (!isnan(grad_norm))
        snprintf(norm, sizeof norm, "  grad_norm %.4f", grad_norm);
    /* The redrawn line shows the mean, which is steadier. A log shows each step's own rate. */
    double rate_ms = p->is_terminal ? p->mean_ms : ms;
    format_rate((double)p->per_step * 1e3 / rate_ms, rate, sizeof rate);
    int64_t steps_left = is_last ? 0 : p->total_steps - steps_done;
    format_duration((double)steps_left * p->mean_ms * 1e-3, eta, sizeof eta);
    if (mem_bytes > 0)
        format_bytes(mem_bytes, memory, sizeof memory);
    snprintf(line, sizeof line, "step %lld/%lld  loss %.4f%s  %.1f ms  %s %s/s  ETA %s%s%s",
             (long long)steps_done, (long long)p->total_steps, loss, norm, ms, rate, p->unit, eta,
             mem_bytes > 0 ? "  mem " : "", memory);
    if (p->is_terminal) {
        draw_on_terminal(p, line, is_last);
    } else {
        fprintf(p->out, "%s\n", line);
        fflush(p->out); /* somebody may be following the log */
    }
}

void progress_close(progress *p)
{
    if (!p)
        return;
    if (p->is_terminal && p->drawn_s > 0) {
        fputc('\n', p->out);
        fflush(p->out);
    }
    free(p);
}
