/* mnist.c -- the network that PyTorch's FSDP tutorial trains on MNIST, as layers.
 *
 *   conv1  relu(conv(pixels))                                C channels of 26 x 26
 *   conv2  dropout(max_pool(relu(conv(x)))), p = 0.25        2 C channels of 12 x 12
 *   fc1    dropout(relu(fc1(x))), p = 0.5                    F
 *   fc2    logits = fc2(x), loss = cross-entropy             10 classes
 *
 * C is --d-model, F is --d-ff; the tutorial uses 32 and 128.
 *
 * A sample is an image of 28 x 28 pixels: one position, 784 wide. Planes are [B, channels, height,
 * width]. Names, shapes and initial values match the tutorial's Net. The first three layers
 * are blocks 0, 1 and 2. fc2, the head, is in no block. So --wrap block makes every layer a unit.
 * Dropout applies only if layer_io.training is set.
 *
 * Between forward and backward conv2 keeps relu's output, 2 C * 24 * 24 elements an image, and fc2
 * the 10 gradients of the logits. conv1 and fc1 keep nothing: their outputs, which are
 * still in layer_io.out in backward, show where relu was 0. model.chunk_rows changes nothing: an
 * image has 10 logits. */
#include <math.h>
#include "common/model/transformer.h"

enum { N_BLOCKS = 3, KERNEL = 3, POOL = 2, CLASSES = 10, MOST_CHANNELS = 4096 };
enum { PIXELS_SIDE = 28, CONV1_SIDE = 26, CONV2_SIDE = 24, POOL_SIDE = CONV2_SIDE / POOL };
#define CONV2_DROPOUT 0.25f
#define FC1_DROPOUT   0.5f

/* Every layer's own parameter order. */
enum { WEIGHT, BIAS };

/* ---- what the layers share ------------------------------------------------------------------- */

/* Channels that a convolution gives: rows of its weight. */
static size_t channels(const layer *l)
{
    return l->model->params[l->first_param].dims[0];
}

/* Elements of an image after conv2, before pooling. */
static size_t conv2_width(const layer *l)
{
    return channels(l) * CONV2_SIDE * CONV2_SIDE;
}

static size_t images_of(const layer_io *io)
{
    return io->batch * io->seq_len;
}

/* Apply dropout to the layer's output or to its gradient. Without training, do nothing: such a call
 * is always a forward with out == in. */
static fsdp_status drop(const layer *l, const ops *o, stream *s, const layer_io *io, dropout_args a)
{
    if (!io->training)
        return FSDP_OK;
    a.samples = images_of(io);
    a.seed = io->seed;
    a.first_sample = io->first_sample;
    a.layer = (uint64_t)(l - l->model->layers);
    a.width = l->out_width;
    a.type = io->type;
    return o->dropout(s, &a);
}

/* x = relu(x), `width` elements an image. */
static fsdp_status relu(const ops *o, stream *s, const layer_io *io, void *x, size_t width)
{
    return o->relu(
        s, &(relu_args){.out = x, .in = x, .elems = images_of(io) * width, .type = io->type});
}

/* d_x = d_y where relu's output is above 0. */
static fsdp_status relu_backward(const ops *o, stream *s, const layer_io *io, relu_backward_args a)
{
    a.elems *= images_of(io);
    a.type = io->type;
    return o->relu_backward(s, &a);
}

/* side: of the planes that the layer reads. */
static conv_shape shape_of(const layer *l, const layer_io *io, size_t side)
{
    return (conv_shape){.batch = images_of(io),
                        .in_channels = l->model->params[l->first_param].dims[1],
                        .out_channels = channels(l),
                        .height = side,
                        .width = side,
                        .kernel = KERNEL,
                        .type = io->type};
}

static fsdp_status conv(const ops *o, stream *s, const layer_io *io, conv_shape shape, void *out)
{
    return o->conv2d(s, &(conv2d_args){.out = out,
                                       .in = io->in,
                                       .weight = io->params[WEIGHT],
                                       .bias = io->params[BIAS],
                                       .shape = shape});
}

static fsdp_status conv_backward(const ops *o, stream *s, const layer_io *io, conv_shape shape,
                                 const void *d_out)
{
    return o->conv2d_backward(s, &(conv2d_backward_args){.d_in = io->d_in,
                                                         .d_weight = io->grads[WEIGHT],
                                                         .d_bias = io->grads[BIAS],
                                                         .d_out = d_out,
                                                         .in = io->in,
                                                         .weight = io->params[WEIGHT],
                                                         .overwrite = !grad_adds(io, WEIGHT),
                                                         .shape = shape});
}

/* Of conv1 and fc1: the gradient of relu's output. */
static layer_bytes d_out_bytes(const layer *l, size_t rows, dtype type)
{
    room work = {0};
    room_take(&work, rows * l->out_width, type);
    return (layer_bytes){.scratch = work.bytes};
}

/* ---- conv1 ----------------------------------------------------------------------------------- */

static fsdp_status conv1_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    if (io->out == NULL)
        return FSDP_OK;
    TRY(conv(o, s, io, shape_of(l, io, PIXELS_SIDE), io->out));
    return relu(o, s, io, io->out, l->out_width);
}

static fsdp_status conv1_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    TRY(relu_backward(
        o, s, io,
        (relu_backward_args){
            .d_in = io->scratch, .d_out = io->d_out, .in = io->out, .elems = l->out_width}));
    return conv_backward(o, s, io, shape_of(l, io, PIXELS_SIDE), io->scratch);
}

static const layer CONV1 = {
    .name = "conv1", .bytes = d_out_bytes, .forward = conv1_forward, .backward = conv1_backward};

/* ---- conv2 ----------------------------------------------------------------------------------- */

typedef struct conv2_arrays {
    void *active;            /* saved: relu's output */
    void *d_pool, *d_active; /* scratch: gradients of max-pooling's output and its input */
} conv2_arrays;

static layer_bytes conv2_lay_out(const layer *l, const layer_io *io, conv2_arrays *k)
{
    room kept = {.base = io->saved ? io->saved : io->scratch}, work = {.base = io->scratch};
    k->active = room_take(&kept, images_of(io) * conv2_width(l), io->type);
    k->d_pool = room_take(&work, images_of(io) * l->out_width, io->type);
    k->d_active = room_take(&work, images_of(io) * conv2_width(l), io->type);
    return (layer_bytes){kept.bytes, work.bytes};
}

LAYER_BYTES(conv2_bytes, conv2_lay_out, conv2_arrays)

static fsdp_status conv2_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    conv2_arrays k;
    conv2_lay_out(l, io, &k);
    TRY(conv(o, s, io, shape_of(l, io, CONV1_SIDE), k.active));
    TRY(relu(o, s, io, k.active, conv2_width(l)));
    if (io->out == NULL)
        return FSDP_OK;
    TRY(o->max_pool2d(s, &(max_pool2d_args){.out = io->out,
                                            .in = k.active,
                                            .planes = images_of(io) * channels(l),
                                            .height = CONV2_SIDE,
                                            .width = CONV2_SIDE,
                                            .type = io->type}));
    return drop(l, o, s, io, (dropout_args){.out = io->out, .in = io->out, .p = CONV2_DROPOUT});
}

static fsdp_status conv2_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    conv2_arrays k;
    conv2_lay_out(l, io, &k);
    TRY(drop(l, o, s, io, (dropout_args){.out = k.d_pool, .in = io->d_out, .p = CONV2_DROPOUT}));
    TRY(o->max_pool2d_backward(s, &(max_pool2d_backward_args){.d_in = k.d_active,
                                                              .d_out = k.d_pool,
                                                              .in = k.active,
                                                              .planes = images_of(io) * channels(l),
                                                              .height = CONV2_SIDE,
                                                              .width = CONV2_SIDE,
                                                              .type = io->type}));
    TRY(relu_backward(
        o, s, io,
        (relu_backward_args){
            .d_in = k.d_active, .d_out = k.d_active, .in = k.active, .elems = conv2_width(l)}));
    return conv_backward(o, s, io, shape_of(l, io, CONV1_SIDE), k.d_active);
}

static const layer CONV2 = {
    .name = "conv2", .bytes = conv2_bytes, .forward = conv2_forward, .backward = conv2_backward};

/* ---- fc1 ------------------------------------------------------------------------------------- */

static fsdp_status fc1_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    void *out = io->out;
    if (out == NULL)
        return FSDP_OK;
    TRY(linear(l, o, s, io, &(linear_args){.y = out, .x = io->in, .weight = WEIGHT}, 1));
    TRY(relu(o, s, io, out, l->out_width));
    return drop(l, o, s, io, (dropout_args){.out = out, .in = out, .p = FC1_DROPOUT});
}

/* relu's mask is read from the layer's output, which is also 0 where an element was dropped. That
 * is right, because dropout's backward has already set the gradient of dropped elements to 0. */
static fsdp_status fc1_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    void *d = io->scratch;
    TRY(drop(l, o, s, io, (dropout_args){.out = d, .in = io->d_out, .p = FC1_DROPOUT}));
    TRY(relu_backward(
        o, s, io,
        (relu_backward_args){.d_in = d, .d_out = d, .in = io->out, .elems = l->out_width}));
    return linear_backward(
        l, o, s, io, &(linear_grad){.d_x = io->d_in, .d_y = d, .x = io->in, .weight = WEIGHT}, 1);
}

static const layer FC1 = {
    .name = "fc1", .bytes = d_out_bytes, .forward = fc1_forward, .backward = fc1_backward};

/* ---- fc2 ------------------------------------------------------------------------------------- */

/* Saved: the gradient of the logits, which replaces the logits. */
static layer_bytes fc2_bytes(const layer *l, size_t rows, dtype type)
{
    (void)l;
    room kept = {0};
    room_take(&kept, rows * CLASSES, type);
    return (layer_bytes){.saved = kept.bytes};
}

static fsdp_status fc2_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    void *saved = io->saved ? io->saved : io->scratch, *logits = io->logits ? io->logits : saved;
    TRY(linear(l, o, s, io, &(linear_args){.y = logits, .x = io->in, .weight = WEIGHT}, 1));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .d_logits = io->keeps ? saved : NULL,
                                                     .logits = logits,
                                                     .targets = io->targets,
                                                     .rows = images_of(io),
                                                     .vocab = CLASSES,
                                                     .type = io->type});
}

static fsdp_status fc2_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    return linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = io->d_in, .d_y = io->saved, .x = io->in, .weight = WEIGHT}, 1);
}

static const layer FC2 = {
    .name = "fc2", .bytes = fc2_bytes, .forward = fc2_forward, .backward = fc2_backward};

/* ---- lists ----------------------------------------------------------------------------------- */

/* Add a weight and a bias, both uniform in +-1 / sqrt(inputs of an output), which is PyTorch's
 * kaiming_uniform_ with a = sqrt(5). weight.dims: outputs first. */
static void add_params(model *m, param_spec weight)
{
    size_t fan_in = 1;
    for (int i = 1; i < PARAM_MAX_DIMS && weight.dims[i] > 0; i++)
        fan_in *= weight.dims[i];
    param_spec bias = {.dims = {weight.dims[0]}};
    snprintf(bias.name, sizeof bias.name, "%.16s.bias", weight.name);
    snprintf(weight.name + strlen(weight.name), sizeof weight.name - strlen(weight.name),
             ".weight");
    weight.init = bias.init = INIT_UNIFORM;
    weight.init_scale = bias.init_scale = 1.0f / sqrtf((float)fan_in);
    model_add_param(m, &weight);
    model_add_param(m, &bias);
}

static void build(model *m)
{
    const size_t C = m->config.d_model, F = m->config.d_ff, pool = 2 * C * POOL_SIDE * POOL_SIDE;
    m->input = (array_spec){"pixels", PIXELS_SIDE * PIXELS_SIDE, ARRAY_VALUES};
    model_add_layer(m, &CONV1, 0);
    model_add_out(m, C * CONV1_SIDE * CONV1_SIDE);
    add_params(m, (param_spec){.name = "conv1", .dims = {C, 1, KERNEL, KERNEL}});
    model_add_layer(m, &CONV2, 1);
    model_add_out(m, pool);
    add_params(m, (param_spec){.name = "conv2", .dims = {2 * C, C, KERNEL, KERNEL}});
    model_add_layer(m, &FC1, 2);
    model_add_out(m, F);
    add_params(m, (param_spec){.name = "fc1", .dims = {F, pool}});
    model_add_layer(m, &FC2, -1);
    add_params(m, (param_spec){.name = "fc2", .dims = {CLASSES, F}});
}

/* ---- sizes and config.json ------------------------------------------------------------------- */

static fsdp_status complete(model_config *c)
{
    const struct {
        const char *option;
        size_t *at, value;
    } fixed[] = {{"n-layer", &c->n_blocks, N_BLOCKS}, {"n-head", &c->n_head, 0},
                 {"n-kv-head", &c->n_kv_head, 0},     {"vocab-size", &c->vocab_size, CLASSES},
                 {"n-positions", &c->max_seq_len, 1}, {"tp-blocks", &c->tp_blocks, 1}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (*fixed[i].at == 0)
            *fixed[i].at = fixed[i].value;
        if (*fixed[i].at != fixed[i].value)
            return fsdp_error(FSDP_EINVAL, "leave the option out: only --d-model and --d-ff differ",
                              "%s: %s is %zu, expected %zu", c->family, fixed[i].option,
                              *fixed[i].at, fixed[i].value);
    }
    TRY(model_check_positive(c, "d-model", c->d_model));
    c->d_ff = c->d_ff ? c->d_ff : 4 * c->d_model;
    if (c->d_model > MOST_CHANNELS)
        return fsdp_error(FSDP_EINVAL, "use a smaller --d-model",
                          "%s: d-model is %zu channels, expected at most %d", c->family, c->d_model,
                          MOST_CHANNELS);
    return FSDP_OK;
}

#define NET(channels, width)                                                                       \
    {                                                                                              \
        .n_blocks = N_BLOCKS, .d_model = channels, .d_ff = width, .vocab_size = CLASSES,           \
        .max_seq_len = 1                                                                           \
    }

static const model_preset_row PRESETS[] = {{"net", NET(32, 128)}, {"tiny", NET(4, 16)}, {0}};

static const config_field FIELDS[] = {
    {"architectures", CONFIG_WRITTEN, .value = "[\"Net\"]"},
    {"model_type", CONFIG_WRITTEN, .value = "\"mnist\""},
    {"image_size", CONFIG_FIXED, .value = "28"},
    {"num_channels", CONFIG_FIXED, .value = "1"},
    {"channels", CONFIG_SIZE, CONFIG_AT(d_model)},
    {"hidden_size", CONFIG_SIZE, CONFIG_AT(d_ff)},
    {"num_labels", CONFIG_SIZE, CONFIG_AT(vocab_size)},
    {"dropout", CONFIG_FIXED, .value = "[0.25,0.5]"},
    {"torch_dtype", CONFIG_WRITTEN, .value = "\"float32\""},
    {0},
};

/* ---- accuracy -------------------------------------------------------------------------------- */

static float logit(const void *logits, size_t i, dtype type)
{
    return type == DTYPE_BF16 ? f32_from_bf16(((const uint16_t *)logits)[i])
                              : ((const float *)logits)[i];
}

/* An answer is the class with the largest logit, the first of equals. */
static size_t count_correct(const model *m, const void *logits, dtype type, const int32_t *targets,
                            size_t n)
{
    const size_t V = m->config.vocab_size;
    size_t n_correct = 0;
    for (size_t j = 0; j < n; j++) {
        size_t best = 0;
        for (size_t v = 1; v < V; v++)
            if (logit(logits, j * V + v, type) > logit(logits, j * V + best, type))
                best = v;
        n_correct += (int32_t)best == targets[j];
    }
    return n_correct;
}

const model_family MNIST_FAMILY = {
    .name = "mnist",
    .title = "the net for MNIST",
    .presets = PRESETS,
    .is_images = true,
    .samples = "images",
    .unit = "img",
    .prefix = "",
    .ignored = "",
    .fields = FIELDS,
    .harmless = "",
    .complete = complete,
    .build = build,
    .metric = "accuracy",
    .count_correct = count_correct,
};
