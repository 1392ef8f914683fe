/* Stands in for NVIDIA's driver and CUDA's runtime: one device of any compute capability.

   For asking the TensorRT-RTX provider itself which devices it takes, without one. */

#include <stddef.h>
#include <string.h>

static int capability[2];

void any_device_is(int major, int minor) {
  capability[0] = major;
  capability[1] = minor;
}

int cudaDeviceGetByPCIBusId(int *device, const char *id) {
  (void)id;
  *device = 0;
  return 0;
}

/* cudaDeviceProp of CUDA 13 (driver_types.h): `major` and `minor` after 360 bytes */
int cudaGetDeviceProperties(char *properties, int device) {
  (void)device;
  memcpy(properties + 360, capability, sizeof capability);
  return 0;
}

/* of OrtApi: HardwareDevice_Metadata and GetKeyValue, at their places in the table */
static const void *metadata(const void *device) { return device; }
static const char *value(const void *pairs, const char *key) {
  (void)pairs;
  (void)key;
  return "0000:00:00.0";
}

void *any_device_api(void) {
  static void *table[1024];
  table[0x9b8 / sizeof(void *)] = (void *)metadata;
  table[0x948 / sizeof(void *)] = (void *)value;
  return table;
}
