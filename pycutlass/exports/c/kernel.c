// One kernel: its host side and its device side loaded, its parameters planned, its launch.
#define _GNU_SOURCE
#include "kernel.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Loaded kernels, of all contexts. Whoever finds one reads the list while others may only put something at its head.
static loaded_kernel* loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { PORTABLE_CLUSTER = 8 };  // threadblocks of a cluster that every GPU with clusters can run

int current_device(drv_context* context, int* device) {
  if (!load_driver()) return PYCUTLASS_NO_DEVICE;
  DRV_CALL(context_get_current, (context));
  if (!*context) {
    return refuse(PYCUTLASS_NO_DEVICE,
                  "no CUDA context is current in this thread: call cudaSetDevice or cuCtxSetCurrent before");
  }
  DRV_CALL(context_get_device, (device));
  return PYCUTLASS_SUCCESS;
}

// What CUTLASS's host code asks of the driver

static _Thread_local drv_result refused_map;  // CUTLASS goes on without a tensor map that is refused

static int host_get_device(int* ordinal) { return load_driver()->context_get_device(ordinal); }

static int host_get_attribute(int* value, int attribute, int ordinal) {
  return load_driver()->device_get_attribute(value, attribute, ordinal);
}

static drv_result encode_tiled(void* map, int type, uint32_t rank, void* address, uint64_t const* extents,
                               uint64_t const* strides, uint32_t const* box, uint32_t const* steps, int interleave,
                               int swizzle, int promotion, int fill) {
  drv_result const code = load_driver()->encode_tiled(map, type, rank, address, extents, strides, box, steps,
                                                      interleave, swizzle, promotion, fill);
  if (code != DRV_SUCCESS) refused_map = code;
  return code;
}

static drv_result encode_im2col(void* map, int type, uint32_t rank, void* address, uint64_t const* extents,
                                uint64_t const* strides, int const* lower, int const* upper, uint32_t channels,
                                uint32_t pixels, uint32_t const* steps, int interleave, int swizzle, int promotion,
                                int fill) {
  drv_result const code = load_driver()->encode_im2col(map, type, rank, address, extents, strides, lower, upper,
                                                       channels, pixels, steps, interleave, swizzle, promotion, fill);
  if (code != DRV_SUCCESS) refused_map = code;
  return code;
}

static int host_get_entry_point(char const* symbol, void** function, unsigned version) {
  (void)version;
  if (!strcmp(symbol, "cuTensorMapEncodeTiled")) {
    *function = (void*)&encode_tiled;
  } else if (!strcmp(symbol, "cuTensorMapEncodeIm2col")) {
    *function = (void*)&encode_im2col;
  } else if (!strcmp(symbol, "cuDriverGetVersion")) {
    *function = *(void* const*)&load_driver()->driver_get_version;
  } else {
    return DRV_NOT_FOUND;
  }
  return DRV_SUCCESS;
}

// The host side

/// CRC-32 of zip files and Ethernet (IEEE 802.3).
static uint32_t digest_of(unsigned char const* bytes, uint64_t count) {
  uint32_t table[256], digest = ~0u;
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
  }
  for (uint64_t i = 0; i < count; ++i) digest = digest >> 8 ^ table[(digest ^ bytes[i]) & 255];
  return ~digest;
}

static int check_digest(stored_kernel const* stored, char const* side, unsigned char const* begin,
                        unsigned char const* end, uint32_t expected) {
  uint32_t const digest = digest_of(begin, (uint64_t)(end - begin));
  if (!expected || digest == expected) return PYCUTLASS_SUCCESS;
  return refuse(PYCUTLASS_DAMAGED,
                "the %s of kernel %s was changed: its digest is %08x and should be %08x. Write it again, or copy it "
                "again.",
                side, stored->name, digest, expected);
}

static int is_loaded(char const* path) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != NULL;
}

/// Writes a path that names a file descriptor and that nothing is loaded by: dlopen compares paths as text before it
/// looks at the file. Other libraries of kernels in the process do likewise, so a count of one's own is not enough.
/// While the descriptor is open, no other thread can take the path.
static void name_file(char* path, int file) {
  static unsigned counter;  // under the lock
  do {
    strcpy(path, "/proc/self/fd");
    for (unsigned rest = ++counter; rest; rest >>= 1) strcat(path, rest & 1 ? "/." : "//.");
    sprintf(path + strlen(path), "/%d", file);
  } while (is_loaded(path));
}

/// Loads a shared object from memory.
static void* open_image(unsigned char const* image, uint64_t bytes) {
  int const file = memfd_create("pycutlass-host", MFD_CLOEXEC);
  if (file < 0) return NULL;
  uint64_t written = 0;
  while (written < bytes) {
    ssize_t const step = write(file, image + written, bytes - written);
    if (step <= 0) break;
    written += (uint64_t)step;
  }
  char path[128];  // of 13 bytes, three for each bit of the counter, and a number
  name_file(path, file);
  void* const handle = written == bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(file);
  return handle;
}

static int load_host(loaded_kernel* kernel) {
  static pycutlass_driver const functions = {host_get_device, host_get_attribute, host_get_entry_point};
  stored_kernel const* const stored = kernel->stored;
  int const changed = check_digest(stored, "host side", stored->host, stored->host_end, stored->host_digest);
  if (changed) return changed;
  kernel->host = open_image(stored->host, (uint64_t)(stored->host_end - stored->host));
  if (!kernel->host) {
    char const* const why = dlerror();
    return refuse(PYCUTLASS_DAMAGED, "the host side of kernel %s cannot be loaded: %s", stored->name,
                  why ? why : strerror(errno));
  }
  pycutlass_describe_function describe;
  pycutlass_describe_epilogue_function describe_epilogue;
  pycutlass_bind_function bind;
  *(void**)&describe = dlsym(kernel->host, "pycutlass_describe");
  *(void**)&describe_epilogue = dlsym(kernel->host, "pycutlass_describe_epilogue");
  *(void**)&kernel->plan = dlsym(kernel->host, "pycutlass_plan");
  *(void**)&bind = dlsym(kernel->host, "pycutlass_bind");
  if (!describe || !describe_epilogue || !kernel->plan || !bind) {
    return refuse(PYCUTLASS_DAMAGED, "the host side of kernel %s lacks a function that all have", stored->name);
  }
  describe(&kernel->info);
  if (kernel->info.abi_version != PYCUTLASS_ABI_VERSION) {
    return refuse(PYCUTLASS_OTHER_VERSION,
                  "kernel %s was built for call record version %u, and this library has version %d: export it again",
                  stored->name, kernel->info.abi_version, PYCUTLASS_ABI_VERSION);
  }
  kernel->field_count = describe_epilogue(NULL, 0);
  kernel->fields = calloc(kernel->field_count + 1, sizeof *kernel->fields);
  if (!kernel->fields) return refuse(PYCUTLASS_DRIVER_ERROR, "there is no memory for kernel %s", stored->name);
  describe_epilogue(kernel->fields, kernel->field_count);
  bind(&functions);
  return PYCUTLASS_SUCCESS;
}

// The device side

/// Whether a GPU runs code for a target: of its major version and no later minor one, with "a" of just its own.
static int check_target(stored_kernel const* stored, int device) {
  int major = 0, minor = 0, target = 0, end = 0;
  char name[128] = "";
  DRV_CALL(device_get_attribute, (&major, DRV_COMPUTE_CAPABILITY_MAJOR, device));
  DRV_CALL(device_get_attribute, (&minor, DRV_COMPUTE_CAPABILITY_MINOR, device));
  DRV_CALL(device_get_name, (name, sizeof name, device));
  sscanf(stored->target, "sm_%d%n", &target, &end);
  int const here = 10 * major + minor, is_native = stored->target[end] != 0;
  if (is_native ? here == target : here / 10 == target / 10 && here >= target) return PYCUTLASS_SUCCESS;
  return refuse(PYCUTLASS_OTHER_DEVICE,
                "kernel %s was compiled for %s, and GPU %d (%s) is sm_%d: export it for that GPU", stored->name,
                stored->target, device, name, here);
}

/// GPUs differ in how many clusters of more than 8 threadblocks they hold; a kernel is told of those alone.
static int count_clusters(loaded_kernel* kernel, int threadblocks) {
  pycutlass_kernel_info const* const info = &kernel->info;
  DRV_CALL(function_set_attribute, (kernel->function, DRV_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  drv_launch_attribute attribute = {DRV_CLUSTER_DIMENSION, {0}, {{0}}};
  attribute.value.cluster.x = info->cluster[0];
  attribute.value.cluster.y = info->cluster[1];
  attribute.value.cluster.z = info->cluster[2];
  drv_launch_config const config = {{info->cluster[0], info->cluster[1], info->cluster[2]},
                                    {info->threads[0], info->threads[1], 1},
                                    info->shared_bytes,
                                    NULL,
                                    &attribute,
                                    1};
  int clusters = 0;
  drv_result const asked = load_driver()->max_active_clusters(&clusters, kernel->function, &config);
  if (asked != DRV_INVALID_CLUSTER_SIZE && asked != DRV_SUCCESS) return driver_failed(asked, "max_active_clusters");
  if (clusters < 1) {
    return refuse(PYCUTLASS_OTHER_DEVICE,
                  "kernel %s has clusters of %d threadblocks, and this GPU cannot hold one of them: it guarantees %d",
                  kernel->stored->name, threadblocks, PORTABLE_CLUSTER);
  }
  int const resident = clusters * threadblocks;
  if (resident < kernel->sm_count) kernel->sm_count = resident;
  return PYCUTLASS_SUCCESS;
}

static int load_device(loaded_kernel* kernel) {
  stored_kernel const* const stored = kernel->stored;
  pycutlass_kernel_info const* const info = &kernel->info;
  int failed = check_target(stored, kernel->device);
  if (!failed) failed = check_digest(stored, "cubin", stored->cubin, stored->cubin_end, stored->cubin_digest);
  if (failed) return failed;
  DRV_CALL(library_load_data, (&kernel->library, stored->cubin, NULL, NULL, 0, NULL, NULL, 0));
  drv_kernel found = NULL;
  DRV_CALL(library_get_kernel, (&found, kernel->library, stored->name));
  DRV_CALL(kernel_get_function, (&kernel->function, found));
  size_t offset = 0, bytes = 0;
  DRV_CALL(function_get_param_info, (kernel->function, 0, &offset, &bytes));
  if (bytes != info->params_bytes || bytes > PYCUTLASS_MAX_PARAMS) {
    return refuse(PYCUTLASS_DAMAGED,
                  "kernel %s takes %zu bytes of parameters on the device, and its host side makes %u: the two do not "
                  "belong together",
                  stored->name, bytes, info->params_bytes);
  }
  int most_shared = 0;
  DRV_CALL(device_get_attribute, (&kernel->sm_count, DRV_MULTIPROCESSOR_COUNT, kernel->device));
  DRV_CALL(device_get_attribute, (&most_shared, DRV_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, kernel->device));
  if ((int)info->shared_bytes > most_shared) {
    return refuse(PYCUTLASS_OTHER_DEVICE,
                  "kernel %s needs %u bytes of shared memory, and this GPU has %d for one threadblock", stored->name,
                  info->shared_bytes, most_shared);
  }
  int const threads = (int)(info->threads[0] * info->threads[1]);
  DRV_CALL(function_set_attribute, (kernel->function, DRV_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)info->shared_bytes));
  DRV_CALL(max_active_blocks, (&kernel->occupancy, kernel->function, threads, info->shared_bytes));
  if (kernel->occupancy < 1) {
    return refuse(PYCUTLASS_OTHER_DEVICE, "kernel %s does not fit on this GPU: not one threadblock can be resident",
                  stored->name);
  }
  int const threadblocks = (int)(info->cluster[0] * info->cluster[1] * info->cluster[2]);
  return threadblocks > PORTABLE_CLUSTER ? count_clusters(kernel, threadblocks) : PYCUTLASS_SUCCESS;
}

static void let_go(loaded_kernel* kernel) {
  if (kernel->library) load_driver()->library_unload(kernel->library);
  if (kernel->host) dlclose(kernel->host);
  free(kernel->fields);
  free(kernel);
}

int find_kernel(uint32_t index, loaded_kernel const** found) {
  drv_context context = NULL;
  int device = 0;
  int failed = current_device(&context, &device);
  if (failed) return failed;
  pthread_mutex_lock(&lock);
  for (*found = loaded; *found; *found = (*found)->next) {
    if ((*found)->stored == &stored_kernels[index] && (*found)->context == context) break;
  }
  if (!*found) {
    loaded_kernel* const made = calloc(1, sizeof *made);
    if (made) {
      made->stored = &stored_kernels[index];
      made->context = context;
      made->device = device;
      failed = load_host(made);
      if (!failed) failed = load_device(made);
    } else {
      failed = refuse(PYCUTLASS_DRIVER_ERROR, "there is no memory for kernel %s", stored_kernels[index].name);
    }
    if (made && failed) {
      let_go(made);
    } else if (made) {
      made->next = loaded;
      loaded = made;
      *found = made;
    }
  }
  pthread_mutex_unlock(&lock);
  return failed;
}

void unload_kernels(void) {
  pthread_mutex_lock(&lock);
  while (loaded) {
    loaded_kernel* const first = loaded;
    loaded = first->next;
    let_go(first);
  }
  pthread_mutex_unlock(&lock);
}

// A launch

int plan_kernel(loaded_kernel const* kernel, any_record const* record, planned_kernel* planned) {
  refused_map = DRV_SUCCESS;
  memset(planned->params, 0, kernel->info.params_bytes);  // CUTLASS leaves out what a kernel does not read
  int const status = kernel->plan(record, planned->params, &planned->result);
  if (refused_map != DRV_SUCCESS) return driver_failed(refused_map, "cuTensorMapEncode");
  if (status) {
    return refuse(PYCUTLASS_INVALID_ARGUMENT, "CUTLASS cannot implement this problem with %s: cutlass::Status %d",
                  kernel->stored->name, status);
  }
  uint32_t const* const grid = planned->result.grid;
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
    return refuse(PYCUTLASS_INVALID_ARGUMENT,
                  "the problem makes a grid of %u x %u x %u threadblocks, and CUDA takes 1 to %d x 65535 x 65535",
                  grid[0], grid[1], grid[2], INT32_MAX);
  }
  return PYCUTLASS_SUCCESS;
}

int launch_kernel(loaded_kernel const* kernel, planned_kernel const* planned, int is_pdl, drv_stream stream) {
  pycutlass_kernel_info const* const info = &kernel->info;
  pycutlass_plan_result const* const result = &planned->result;
  drv_launch_attribute attributes[2] = {{0, {0}, {{0}}}};
  drv_launch_config config = {{result->grid[0], result->grid[1], result->grid[2]},
                              {info->threads[0], info->threads[1], 1},
                              info->shared_bytes,
                              stream,
                              attributes,
                              0};
  if (info->cluster[0] * info->cluster[1] * info->cluster[2] > 1) {
    drv_launch_attribute* const attribute = &attributes[config.attribute_count++];
    attribute->id = DRV_CLUSTER_DIMENSION;
    attribute->value.cluster.x = info->cluster[0];
    attribute->value.cluster.y = info->cluster[1];
    attribute->value.cluster.z = info->cluster[2];
  }
  if (is_pdl && result->supports_pdl) {
    drv_launch_attribute* const attribute = &attributes[config.attribute_count++];
    attribute->id = DRV_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute->value.allowed = 1;
  }
  void* arguments[] = {(void*)planned->params};
  DRV_CALL(launch_kernel, (&config, kernel->function, arguments, NULL));
  return PYCUTLASS_SUCCESS;
}

int fill_zeros(void* memory, uint64_t bytes, drv_stream stream) {
  DRV_CALL(fill, ((drv_address)(uintptr_t)memory, 0, bytes, stream));
  return PYCUTLASS_SUCCESS;
}
