/* timeline_svg.c -- draw a step as SVG; see timeline_draw.h.
 *
 * The picture has a white background on any page, and uses no style sheet, so that it looks the
 * same in a browser, in Markdown and on paper. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "common/observe/timeline_draw.h"

/* Pixels. */
enum {
    WIDTH = 1200,
    LEFT = 118, /* names of ranks and streams */
    RIGHT = 16,
    HEAD = 64, /* title and legend */
    LANE = 30,
    LANE_GAP = 6,
    RANK_GAP = 16,
    FOOT = 40, /* the axis */
    DRAWN = WIDTH - LEFT - RIGHT
};

static const char *const FILLS[DRAW_CLASSES] = {
    [DRAW_FORWARD] = "#8fb4f5", [DRAW_BACKWARD] = "#7fc9a4", [DRAW_OPTIMIZER] = "#b9a8e3",
    [DRAW_GATHER] = "#f3bd6f",  [DRAW_REDUCE] = "#ea9585",   [DRAW_SIDE] = "#c3cad3",
    [DRAW_WAIT] = "url(#wait)"};

typedef struct picture {
    FILE *out;
    const draw_window *window;
    double y; /* top of the next lane */
} picture;

static double to_x(const picture *p, double s)
{
    double share = (s - p->window->begin_s) / draw_axis_s(p->window);
    return LEFT + DRAWN * (share < 0 ? 0 : share > 1 ? 1 : share);
}

static void put_escaped(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c == '<' || *c == '>' || *c == '&' || *c == '"')
            fprintf(out, "&#%d;", *c);
        else
            fputc((unsigned char)*c < 0x20 ? '?' : *c, out);
}

/* style: attributes of the text element; y: the middle of the letters. */
static void put_text(const picture *p, double x, double y, const char *style, const char *text)
{
    fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y + 3.8, style);
    put_escaped(p->out, text);
    fprintf(p->out, "</text>\n");
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* Adjacent items that are drawn as one. */
typedef struct box {
    draw_span span;
    char label[TIMELINE_UNIT_BYTES];
} box;

static void put_box(const picture *p, const box *b)
{
    enum { LETTER = 7 }; /* most pixels of a letter */
    const draw_span *s = &b->span;
    if (s->class == DRAW_NONE)
        return;
    double x = to_x(p, s->begin_s), width = to_x(p, s->end_s) - x;
    fprintf(p->out,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
            "stroke=\"#ffffff\" stroke-width=\"%s\"><title>%s ",
            x, p->y, fmax(width, 0.3), LANE, FILLS[s->class], width > 3 ? "0.6" : "0",
            draw_class_names[s->class]);
    put_escaped(p->out, b->label);
    fprintf(p->out, ", %.3f ms</title></rect>\n", 1e3 * (s->end_s - s->begin_s));
    if (width >= LETTER * (double)strlen(b->label) + 2)
        put_text(p, x + width / 2, p->y + LANE / 2.0, "text-anchor=\"middle\" font-size=\"11\"",
                 b->label);
}

/* The label of a box: the block of a layer ("h.3" of "h.3.attn"), or the unit of a collective. */
static void box_label(const timeline_view *v, const draw_span *span, char *label)
{
    snprintf(label, TIMELINE_UNIT_BYTES, "%s", span->unit);
    char *dot = strchr(label, '.'), *second = dot ? strchr(dot + 1, '.') : NULL;
    if (second && v->items[span->item].kind == TIMELINE_WORK)
        *second = '\0';
}

/* Whether span joins box b: it has the same class and label, and the gap is less than a pixel. */
static bool joins(const picture *p, const box *b, const draw_span *span, const char *label)
{
    return span->class != DRAW_WAIT && b->span.class == span->class &&
           strcmp(b->label, label) == 0 && to_x(p, span->begin_s) - to_x(p, b->span.end_s) < 1.0;
}

/* Draw the boxes of stream s. */
static void put_boxes(const picture *p, const timeline_view *v, int s)
{
    box b = {.span.class = DRAW_NONE};
    timeline_cursor c = {0};
    draw_span span;
    while (draw_next(v, s, p->window, &c, &span)) {
        char label[TIMELINE_UNIT_BYTES];
        box_label(v, &span, label);
        if (!joins(p, &b, &span, label)) {
            put_box(p, &b);
            b.span = span;
            memcpy(b.label, label, sizeof b.label);
        }
        b.span.end_s = span.end_s;
    }
    put_box(p, &b);
}

/* ---- the picture ----------------------------------------------------------------------------- */

static double height_of(draw_count c)
{
    return c.n_lanes * (LANE + LANE_GAP) + c.n_ranks * RANK_GAP;
}

static void put_lanes(FILE *out, const draw_window *window, const timeline_view *v,
                      draw_count above)
{
    picture p = {.out = out, .window = window, .y = HEAD + height_of(above)};
    char name[32];
    snprintf(name, sizeof name, "rank %d", v->rank);
    put_text(&p, 12, p.y + LANE / 2.0, "font-weight=\"bold\"", name);
    for (int s = 0; s < v->n_streams; s++) {
        if (!draw_has_lane(v, s))
            continue;
        put_text(&p, LEFT - 8, p.y + LANE / 2.0, "text-anchor=\"end\" fill=\"#555555\"",
                 v->streams[s]);
        fprintf(out,
                "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#203040\" "
                "fill-opacity=\"0.06\"/>\n",
                LEFT, p.y, DRAWN, LANE);
        put_boxes(&p, v, s);
        p.y += LANE + LANE_GAP;
    }
}

static void put_legend(const picture *p, int n_ranks, double height)
{
    char title[256];
    double x = LEFT;
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"Helvetica, Arial, sans-serif\" "
            "font-size=\"12\" fill=\"#222222\">\n"
            "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" "
            "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
            "<rect width=\"6\" height=\"6\" fill=\"#fdeae6\"/>"
            "<rect width=\"2\" height=\"6\" fill=\"#e9b3a8\"/></pattern></defs>\n"
            "<rect width=\"%d\" height=\"%.0f\" fill=\"#ffffff\"/>\n",
            WIDTH, height, WIDTH, height, WIDTH, height);
    snprintf(title, sizeof title, "Step %llu on %d rank%s%s%s: %.1f ms",
             (unsigned long long)p->window->step, n_ranks, n_ranks == 1 ? "" : "s",
             *p->window->caption ? ", " : "", p->window->caption,
             1e3 * (p->window->end_s - p->window->begin_s));
    put_text(p, LEFT, 18, "font-size=\"15\" font-weight=\"bold\"", title);
    for (int c = 0; c < DRAW_CLASSES; c++) {
        const char *name = draw_class_names[c];
        fprintf(p->out,
                "<rect x=\"%.0f\" y=\"35\" width=\"14\" height=\"14\" fill=\"%s\" "
                "stroke=\"#c8ccd0\" stroke-width=\"0.5\"/>\n",
                x, FILLS[c]);
        put_text(p, x + 20, 42, "", name);
        x += 44 + 6.6 * (double)strlen(name);
    }
}

/* The least of 1, 2 and 5 times a power of ten that gives at most ten marks. */
static double mark_ms(double ms)
{
    double step = pow(10, floor(log10(ms / 10)));
    return ms / step <= 10   ? step
           : ms / step <= 20 ? 2 * step
           : ms / step <= 50 ? 5 * step
                             : 10 * step;
}

static void put_axis(const picture *p, double top, double bottom)
{
    double ms = 1e3 * draw_axis_s(p->window), every = mark_ms(ms);
    char label[32];
    for (int k = 0; k * every <= ms * (1 + 1e-9); k++) {
        double x = LEFT + DRAWN * k * every / ms;
        fprintf(p->out,
                "<line x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#222222\" "
                "stroke-opacity=\"0.2\"/>\n",
                x, top, x, bottom);
        snprintf(label, sizeof label, "%g%s", k * every, k == 0 ? " ms" : "");
        put_text(p, x, bottom + 10, "text-anchor=\"middle\" fill=\"#555555\"", label);
    }
}

static void put_head(FILE *out, const draw_window *window, draw_count all)
{
    picture p = {.out = out, .window = window};
    double height = HEAD + height_of(all) + FOOT;
    put_legend(&p, all.n_ranks, height);
    if (window->end_s > window->begin_s)
        put_axis(&p, HEAD - 4, height - FOOT - RANK_GAP + 6); /* below the boxes */
}

static void put_foot(FILE *out, const draw_window *window)
{
    (void)window;
    fprintf(out, "</svg>\n");
}

const draw_format draw_svg = {"timeline.svg", 4, true, put_head, put_lanes, put_foot};
