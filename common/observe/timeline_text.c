/* timeline_text.c -- draw a step as text; see timeline_draw.h. */
#include <limits.h>
#include <math.h>
#include "common/observe/timeline_draw.h"

enum { LABEL_COLUMNS = 16, COLUMNS = 100 - LABEL_COLUMNS - 2 };

static const char SIGN[DRAW_CLASSES + 1] = "fboGRcw";

/* The seconds that one stream spent on each class, by column. */
typedef double lane[COLUMNS][DRAW_CLASSES];

/* Add a span to the columns that it overlaps. */
static void lane_add(lane l, const draw_window *w, const draw_span *span)
{
    double column_s = draw_axis_s(w) / COLUMNS;
    for (int k = 0; k < COLUMNS; k++) {
        double from_s = w->begin_s + k * column_s, to_s = from_s + column_s;
        double overlap_s = fmin(span->end_s, to_s) - fmax(span->begin_s, from_s);
        l[k][span->class] += fmax(overlap_s, 0);
    }
}

/* The sign of the class that took most of a column; ' ' if idle time took most. */
static char column_sign(const double *seconds, double column_s)
{
    char sign = ' ';
    double most_s = column_s;
    for (int c = 0; c < DRAW_CLASSES; c++)
        most_s -= seconds[c];
    for (int c = 0; c < DRAW_CLASSES; c++)
        if (seconds[c] > most_s) {
            most_s = seconds[c];
            sign = SIGN[c];
        }
    return sign;
}

static void put_lanes(FILE *out, const draw_window *w, const timeline_view *v, draw_count above)
{
    (void)above;
    for (int s = 0; s < v->n_streams; s++) {
        if (!draw_has_lane(v, s))
            continue;
        char name[64];
        lane l = {{0}};
        timeline_cursor c = {0};
        draw_span span;
        while (draw_next(v, s, w, &c, &span))
            lane_add(l, w, &span);
        snprintf(name, sizeof name, "%d %.*s", v->rank, LABEL_COLUMNS - 5, v->streams[s]);
        fprintf(out, "%*s |", LABEL_COLUMNS - 1, name);
        for (int k = 0; k < COLUMNS; k++)
            fputc(column_sign(l[k], draw_axis_s(w) / COLUMNS), out);
        fprintf(out, "|\n");
    }
}

static void put_head(FILE *out, const draw_window *w, draw_count all)
{
    (void)all;
    fprintf(out, "step %llu%s%s%s\n", (unsigned long long)w->step, *w->caption ? " (" : "",
            w->caption, *w->caption ? ")" : "");
}

static void put_foot(FILE *out, const draw_window *w)
{
    enum { MARKS = 4 };
    double ms = 1e3 * draw_axis_s(w);
    fprintf(out, "%*s 0", LABEL_COLUMNS, "ms");
    for (int k = 1; k <= MARKS; k++)
        fprintf(out, "%*.1f", COLUMNS / MARKS, ms * k / MARKS);
    for (int c = 0; c < DRAW_CLASSES; c++)
        fprintf(out, "%s%c %s", c > 0 ? "  " : "\n", SIGN[c], draw_class_names[c]);
    fprintf(out, "\n");
}

const draw_format draw_text = {"timeline.txt", INT_MAX, false, put_head, put_lanes, put_foot};
