// What a program needs of a GPU beside launches, by the driver.
#include "memory.h"

#include "kernel.h"

int start_device(char* name, int room) {
  drv_functions const* const driver = load_driver();
  if (!driver) return PYCUTLASS_NO_DEVICE;
  int device = 0, count = 0;
  drv_context context = NULL;
  DRV_CALL(device_get_count, (&count));
  if (!count) return refuse(PYCUTLASS_NO_DEVICE, "the CUDA driver finds no GPU");
  DRV_CALL(device_get, (&device, 0));
  DRV_CALL(device_get_name, (name, room, device));
  DRV_CALL(primary_context_retain, (&context, device));
  DRV_CALL(context_set_current, (context));
  return PYCUTLASS_SUCCESS;
}

int take_memory(void** memory, size_t bytes) {
  drv_address address = 0;
  DRV_CALL(mem_alloc, (&address, bytes));
  *memory = (void*)(uintptr_t)address;
  return PYCUTLASS_SUCCESS;
}

int to_device(void* memory, void const* host, size_t bytes) {
  DRV_CALL(copy_to_device, ((drv_address)(uintptr_t)memory, host, bytes, NULL));
  return PYCUTLASS_SUCCESS;
}

int to_host(void* host, void const* memory, size_t bytes) {
  DRV_CALL(copy_to_host, (host, (drv_address)(uintptr_t)memory, bytes, NULL));
  DRV_CALL(stream_synchronize, (NULL));
  return PYCUTLASS_SUCCESS;
}

int milliseconds_since(double* milliseconds) {
  static drv_event last;
  drv_event now = NULL;
  float passed = 0;
  DRV_CALL(event_create, (&now, 0));
  DRV_CALL(event_record, (now, NULL));
  DRV_CALL(event_synchronize, (now));
  if (last) DRV_CALL(event_elapsed_time, (&passed, last, now));
  *milliseconds = passed;
  last = now;
  return PYCUTLASS_SUCCESS;
}
