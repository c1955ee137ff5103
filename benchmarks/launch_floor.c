/* The floor of host time per launch: cuLaunchKernelEx in a loop, and nothing else. Compiles as C and as C++. */
#include <cuda.h>
#include <dlfcn.h>

typedef CUresult (*Launch)(CUlaunchConfig const*, CUfunction, void**, void**);

/* dims: grid, block and cluster, three numbers each. pdl: whether each launch is a programmatic dependent one. Returns
 * a CUresult, or -1 where there is no driver. */
#ifdef __cplusplus
extern "C"
#endif
    int launch_floor(void* function, unsigned const* dims, unsigned shared_bytes, int pdl, void* params, void* stream,
                     long calls) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  Launch launch = library ? (Launch)dlsym(library, "cuLaunchKernelEx") : 0;
  if (!launch) return -1;

  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (dims[6] * dims[7] * dims[8] > 1) {
    CUlaunchAttribute* cluster = &attributes[count++];
    cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster->value.clusterDim.x = dims[6];
    cluster->value.clusterDim.y = dims[7];
    cluster->value.clusterDim.z = dims[8];
  }
  if (pdl) {
    CUlaunchAttribute* dependent = &attributes[count++];
    dependent->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    dependent->value.programmaticStreamSerializationAllowed = 1;
  }

  CUlaunchConfig config;
  config.gridDimX = dims[0];
  config.gridDimY = dims[1];
  config.gridDimZ = dims[2];
  config.blockDimX = dims[3];
  config.blockDimY = dims[4];
  config.blockDimZ = dims[5];
  config.sharedMemBytes = shared_bytes;
  config.hStream = (CUstream)stream;
  config.attrs = attributes;
  config.numAttrs = count;

  void* arguments[1];
  arguments[0] = params;
  for (long call = 0; call < calls; ++call) {
    CUresult code = launch(&config, (CUfunction)function, arguments, 0);
    if (code != CUDA_SUCCESS) return (int)code;
  }
  return 0;
}
