// A library with one plug-in of TensorRT, Cube, for tests of the real parser and builder.
//
// There are no headers of TensorRT-RTX here, so the interfaces stand here as far as their order of
// virtual functions goes (NvInferRuntime.h and NvInferPluginBase.h of TensorRT 10). Nothing is
// computed: no device is there to run on.
#include <cstddef>
#include <cstdint>

struct InterfaceInfo { const char *kind; int32_t major, minor; };
struct Field { const char *name; const void *data; int32_t type, length; };
struct Fields { int32_t count; const Field *fields; };
struct Dimensions { int32_t rank; const void *sizes[8]; };

struct Interface {
    virtual int32_t language() const noexcept { return 0; }
    virtual InterfaceInfo info() const noexcept = 0;
    virtual ~Interface() noexcept = default;
};

static const char *const NAME = "Cube";
static const Fields NONE = {0, nullptr};

struct Core : Interface {
    InterfaceInfo info() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual const char *name() const noexcept { return NAME; }
    virtual const char *version() const noexcept { return "1"; }
    virtual const char *space() const noexcept { return ""; }
};

struct Build : Interface {
    InterfaceInfo info() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configure(const void *, int32_t, const void *, int32_t) noexcept { return 0; }
    virtual int32_t types(int32_t *out, int32_t, const int32_t *in, int32_t) const noexcept {
        out[0] = in[0];
        return 0;
    }
    virtual int32_t shapes(const Dimensions *in, int32_t, const Dimensions *, int32_t,
                           Dimensions *out, int32_t, void *) noexcept {
        out[0] = in[0];
        return 0;
    }
    virtual bool supports(int32_t, const void *, int32_t, int32_t) noexcept { return true; }
    virtual int32_t outputs() const noexcept { return 1; }
    virtual size_t workspace(const void *, int32_t, const void *, int32_t) const noexcept { return 0; }
    virtual int32_t tactics(int32_t *, int32_t) noexcept { return 0; }
    virtual int32_t tactic_count() noexcept { return 0; }
    virtual const char *timing_id() noexcept { return nullptr; }
    virtual int32_t combinations() noexcept { return 1; }
    virtual const char *metadata() noexcept { return nullptr; }
};

struct Plugin;
struct Runtime : Interface {
    Plugin *plugin;
    InterfaceInfo info() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t set_tactic(int32_t) noexcept { return 0; }
    virtual int32_t on_shape(const void *, int32_t, const void *, int32_t) noexcept { return 0; }
    virtual int32_t enqueue(const void *, const void *, const void *const *, void *const *, void *,
                            void *) noexcept { return 1; }
    virtual void *attach(void *) noexcept;
    virtual const Fields *serialized() noexcept { return &NONE; }
};

struct Plugin : Interface {
    Core core;
    Build build;
    Runtime runtime;
    InterfaceInfo info() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual void *capability(int32_t kind) noexcept {
        Interface *found[] = {&core, &build, &runtime};
        return found[kind];
    }
    virtual Plugin *clone() noexcept { return new Plugin(); }
};

void *Runtime::attach(void *) noexcept { return new Plugin(); }

struct Creator : Interface {
    InterfaceInfo info() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual void *create(const char *, const Fields *, int32_t) noexcept {
        return new Plugin();
    }
    virtual const Fields *fields() noexcept { return &NONE; }
    virtual const char *name() const noexcept { return NAME; }
    virtual const char *version() const noexcept { return "1"; }
    virtual const char *space() const noexcept { return ""; }
};

static Creator creator;
static Interface *const creators[] = {&creator};

extern "C" {
Interface *const *getCreators(int32_t &count) {
    count = 1;
    return creators;
}
void setLoggerFinder(void *) {}
}
