/* A library with one operator of ONNX Runtime, my.ops:Cube, y = x * x * x, for tests.
 *
 * The image has no headers of ONNX Runtime, so what is used of its C ABI stands here: places in the
 * table of functions, which never move, and the structure of an operator as of API version 14
 * (onnxruntime_c_api.h, counted in version 24 of it).
 *
 * -DAPI=N            ask for version N of the API
 * -DNAME=TEXT        another operator name
 * -DNO_ENTRY         without the function that ONNX Runtime looks for
 * -DUNDEFINED        calls a function that is nowhere
 * -DFAILS_IF="PATH"  with throwing.cpp: every run throws while that file is there, and says its content
 * -DAFTER=N          with one of the next three: from the N-th run of the process on
 * -DDRIFTS           answers become wrong, by 1% more in each run
 * -DCRASHES          a run crashes
 * -DLEAKS=BYTES      a run leaks so much memory, which it has written to
 * -DCRASH -DHANG     do so while the library is loaded
 * -DHOLDS="STAGES"   a Job's container of one of these stages that loads it goes on once /tmp/STAGE is there
 * -DPLUGIN           a library that TensorRT takes for one with plug-ins, of which it has none
 * -DNO_LOGGER        that one lacks what TensorRT-RTX 1.7 asks of every such library
 * -DREGISTRY_CRASH   that one crashes when TensorRT asks for them
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef API
#define API 14
#endif
#ifndef NAME
#define NAME "Cube"
#endif

typedef void *Status; /* NULL: no error */
typedef void (*Function)(void);
enum {
    CREATE_CUSTOM_OP_DOMAIN = 26,
    CUSTOM_OP_DOMAIN_ADD = 27,
    ADD_CUSTOM_OP_DOMAIN = 28,
    GET_TENSOR_MUTABLE_DATA = 51,
    GET_DIMENSIONS_COUNT = 61,
    GET_DIMENSIONS = 62,
    GET_TENSOR_SHAPE_ELEMENT_COUNT = 64,
    GET_TENSOR_TYPE_AND_SHAPE = 65,
    KERNEL_CONTEXT_GET_INPUT = 90,
    KERNEL_CONTEXT_GET_OUTPUT = 91,
    RELEASE_TENSOR_TYPE_AND_SHAPE_INFO = 99,
};
enum { FLOAT = 1 };

typedef struct {
    const Function *(*get_api)(uint32_t version);
    const char *(*get_version_string)(void);
} ApiBase;

typedef struct Operator {
    uint32_t version;
    void *(*create_kernel)(const struct Operator *, const Function *, const void *info);
    const char *(*get_name)(const struct Operator *);
    const char *(*get_provider)(const struct Operator *);
    int (*get_input_type)(const struct Operator *, size_t);
    size_t (*get_input_count)(const struct Operator *);
    int (*get_output_type)(const struct Operator *, size_t);
    size_t (*get_output_count)(const struct Operator *);
    void (*compute)(void *kernel, void *context);
    void (*destroy)(void *kernel);
    int (*get_input_characteristic)(const struct Operator *, size_t);
    int (*get_output_characteristic)(const struct Operator *, size_t);
    int (*get_input_memory)(const struct Operator *, size_t);
    int (*get_variadic_input_min)(const struct Operator *);
    int (*get_variadic_input_homogeneity)(const struct Operator *);
    int (*get_variadic_output_min)(const struct Operator *);
    int (*get_variadic_output_homogeneity)(const struct Operator *);
} Operator;

static const Function *api;

static void *create_kernel(const Operator *self, const Function *table, const void *info) { return &api; }
static void destroy(void *kernel) {}
static const char *get_name(const Operator *self) { return NAME; }
static const char *get_provider(const Operator *self) { return NULL; }
static int get_type(const Operator *self, size_t index) { return FLOAT; }
static size_t one(const Operator *self) { return 1; }
static int zero_at(const Operator *self, size_t index) { return 0; }
static int one_of(const Operator *self) { return 1; }

#ifdef FAILS_IF
void throw_if(const char *path);
#endif

#ifdef AFTER
static long runs;
static void *volatile lost; /* else the compiler leaves the allocation out */
#endif

static void compute(void *kernel, void *context) {
    const void *input;
    void *output, *shape;
    float *from, *to;
    size_t rank, count;
    int64_t sizes[16];
#ifdef FAILS_IF
    throw_if(FAILS_IF);
#endif
    ((Status(*)(void *, size_t, const void **))api[KERNEL_CONTEXT_GET_INPUT])(context, 0, &input);
    ((Status(*)(const void *, void **))api[GET_TENSOR_TYPE_AND_SHAPE])(input, &shape);
    ((Status(*)(void *, size_t *))api[GET_DIMENSIONS_COUNT])(shape, &rank);
    ((Status(*)(void *, int64_t *, size_t))api[GET_DIMENSIONS])(shape, sizes, rank);
    ((Status(*)(void *, size_t *))api[GET_TENSOR_SHAPE_ELEMENT_COUNT])(shape, &count);
    ((void (*)(void *))api[RELEASE_TENSOR_TYPE_AND_SHAPE_INFO])(shape);
    ((Status(*)(void *, size_t, const int64_t *, size_t, void **))api[KERNEL_CONTEXT_GET_OUTPUT])(
        context, 0, sizes, rank, &output);
    ((Status(*)(const void *, void **))api[GET_TENSOR_MUTABLE_DATA])(input, (void **)&from);
    ((Status(*)(void *, void **))api[GET_TENSOR_MUTABLE_DATA])(output, (void **)&to);
    for (size_t index = 0; index < count; index++) to[index] = from[index] * from[index] * from[index];
#ifdef AFTER
    long late = ++runs - AFTER;
    if (late < 0) return;
#ifdef DRIFTS
    for (size_t index = 0; index < count; index++) to[index] *= 1 + 0.01f * late;
#endif
#ifdef CRASHES
    *(volatile int *)8 = 1;
#endif
#ifdef LEAKS
    lost = memset(malloc(LEAKS), 1, LEAKS);
#endif
#endif
}

static const Operator cube = {
    14,      create_kernel, get_name, get_provider, get_type, one,    get_type, one,   compute,
    destroy, zero_at,       zero_at,  zero_at,      one_of,   one_of, one_of,   one_of,
};

#ifdef UNDEFINED
void nowhere_to_be_found(void);
#endif

#if defined(PLUGIN)
#ifndef NO_LOGGER
void setLoggerFinder(void *finder) {}
#endif
void *const *getCreators(int32_t *count) {
#ifdef REGISTRY_CRASH
    abort();
#endif
#ifdef UNDEFINED
    nowhere_to_be_found();
#endif
    *count = 0;
    return NULL;
}
#elif !defined(NO_ENTRY)
Status RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain;
    Status status;
#ifdef UNDEFINED
    nowhere_to_be_found();
#endif
    api = base->get_api(API);
    status = ((Status(*)(const char *, void **))api[CREATE_CUSTOM_OP_DOMAIN])("my.ops", &domain);
    if (!status)
        status = ((Status(*)(void *, const Operator *))api[CUSTOM_OP_DOMAIN_ADD])(domain, &cube);
    if (!status)
        status = ((Status(*)(void *, void *))api[ADD_CUSTOM_OP_DOMAIN])(options, domain);
    return status;
}
#endif

#if defined(CRASH)
__attribute__((constructor)) static void crash(void) { abort(); }
#elif defined(HANG)
__attribute__((constructor)) static void hang(void) {
    for (;;) pause();
}
#elif defined(HOLDS)
/* A container's first process is what its pod says, and ends in the name of the stage. */
__attribute__((constructor)) static void hold(void) {
    char command[4096] = "", released[4096];
    const char *stage;
    FILE *file = fopen("/proc/1/cmdline", "r");
    size_t length = file ? fread(command, 1, sizeof command - 1, file) : 0;
    if (file) fclose(file);
    while (length && !command[length - 1]) length--;
    while (length && command[length - 1]) length--;
    stage = command + length;
    if (!*stage || !strstr(HOLDS, stage)) return;
    snprintf(released, sizeof released, "/tmp/%s", stage);
    while (access(released, F_OK)) usleep(50000);
}
#endif
