/* Stands in for TensorRT: builds nothing, parses nothing and deserialises nothing, but never crashes.

   For asking ONNX Runtime's TensorRT provider which nodes it claims, without a device. Every object has
   the layout of NVIDIA's interfaces: a table of methods, and a pointer to its implementation. */

#include <stddef.h>

enum { METHODS = 512 };

static void *refusing[METHODS], *making[METHODS];

static struct {
  void *methods;
  void *implementation;
} empty = {refusing, &empty}, builder = {making, &builder};

static long nothing(void) { return 0; }
static void *something(void) { return &empty; }

__attribute__((constructor)) static void fill(void) {
  for (size_t i = 0; i < METHODS; i++) {
    refusing[i] = (void *)nothing;
    making[i] = (void *)something;
  }
}

void *createInferBuilder_INTERNAL(void) { return &builder; }
void *createInferRefitter_INTERNAL(void) { return &empty; }
void *createInferRuntime_INTERNAL(void) { return &empty; }
void *createNvOnnxParser_INTERNAL(void) { return &empty; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return &empty; }
void *getPluginRegistry(void) { return &empty; }
int getInferLibVersion(void) { return 101300; }
