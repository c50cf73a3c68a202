/* timeline_text.c -- timeline_draw_text; see timeline_draw.h. */
#include <stdbool.h>
#include "common/observe/timeline_draw.h"

enum { LABEL_COLUMNS = 16, COLUMNS = 100 - LABEL_COLUMNS - 2 };

static const char SIGN[DRAW_CLASSES + 1] = "fboGRcw";

/* What one stream did, by column. */
typedef struct lane {
    double seconds[COLUMNS][DRAW_CLASSES];
    bool is_used;
} lane;

/* Share a span out over the columns that it lies in. */
static void lane_add(lane *l, const draw_window *w, const draw_span *span)
{
    double column_s = (w->end_s - w->begin_s) / COLUMNS;
    for (int k = 0; k < COLUMNS; k++) {
        double from_s = w->begin_s + k * column_s, to_s = from_s + column_s;
        from_s = span->begin_s > from_s ? span->begin_s : from_s;
        to_s = span->end_s < to_s ? span->end_s : to_s;
        if (to_s > from_s)
            l->seconds[k][span->class] += to_s - from_s;
    }
    l->is_used = true;
}

/* A column's sign is that of what took most of it; idle time counts too. */
static void lane_print(FILE *out, const lane *l, const char *name, double column_s)
{
    fprintf(out, "%*s |", LABEL_COLUMNS - 1, name);
    for (int k = 0; k < COLUMNS; k++) {
        char sign = ' ';
        double most_s = column_s;
        for (int c = 0; c < DRAW_CLASSES; c++)
            most_s -= l->seconds[k][c];
        for (int c = 0; c < DRAW_CLASSES; c++)
            if (l->seconds[k][c] > most_s) {
                most_s = l->seconds[k][c];
                sign = SIGN[c];
            }
        fputc(sign, out);
    }
    fprintf(out, "|\n");
}

static void print_axis(FILE *out, const draw_window *w)
{
    enum { MARKS = 4 };
    double ms = 1e3 * (w->end_s - w->begin_s);
    fprintf(out, "%*s 0", LABEL_COLUMNS, "ms");
    for (int k = 1; k <= MARKS; k++)
        fprintf(out, "%*.1f", COLUMNS / MARKS, ms * k / MARKS);
    fprintf(out, "\n");
    for (int c = 0; c < DRAW_CLASSES; c++)
        fprintf(out, "%s%c %s", c > 0 ? "  " : "", SIGN[c], draw_class_name((draw_class)c));
    fprintf(out, "\n");
}

void timeline_draw_text(FILE *out, const timeline_view *views, int n_views,
                        const draw_window *window)
{
    fprintf(out, "step %llu\n", (unsigned long long)window->step);
    for (int r = 0; r < n_views; r++)
        for (int s = 0; s < views[r].n_streams; s++) {
            const timeline_view *v = &views[r];
            char name[64];
            lane l = {.is_used = false};
            timeline_cursor c = {0};
            draw_span span;
            while (draw_next(v, s, window, &c, &span))
                lane_add(&l, window, &span);
            snprintf(name, sizeof name, "%d %.*s", v->rank, LABEL_COLUMNS - 5, v->streams[s]);
            if (l.is_used)
                lane_print(out, &l, name, (window->end_s - window->begin_s) / COLUMNS);
        }
    print_axis(out, window);
}
