// What a program needs of a GPU beside launches. memory.c has it by the driver, device.cu by the CUDA runtime.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Makes the first GPU current and says its name. Like all of these, it returns a pycutlass_code.
int start_device(char* name, int room);
int take_memory(void** memory, size_t bytes);
int to_device(void* memory, void const* host, size_t bytes);
/// Waits for everything before.
int to_host(void* host, void const* memory, size_t bytes);
/// Waits for everything before; milliseconds since the last call.
int milliseconds_since(double* milliseconds);

#ifdef __cplusplus
}
#endif
