// A program with one plan: it runs the kernel on small numbers, compares with plain loops and prints GFLOP/s.
//
//   program [M]    M, or the number of images; without it what the plan was made with
//
// It exits with 1 where a result is wrong, and with 2 where there is no GPU that runs the kernel.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "loop.h"
#include "memory.h"
#include "numbers.h"

enum { RUNS = 20 };
static double const MOST_PRODUCTS = 1u << 27;  // that are computed by loops

static void stop(int code) {
  fprintf(stderr, "%s\n", kernel_message());
  exit(code == PYCUTLASS_NO_DEVICE || code == PYCUTLASS_OTHER_DEVICE ? 2 : 1);
}

static void require(int code) {
  if (code) stop(code);
}

/// Multiples of 1/4 of a size of 1 at most, whose sums are exact in f32; whole numbers for integers.
static double small_number(uint64_t index, int seed, int is_integer) {
  uint64_t mixed = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)seed * UINT64_C(0xbf58476d1ce4e5b9);
  mixed ^= mixed >> 29;
  int const step = (int)(mixed * UINT64_C(0x94d049bb133111eb) >> 40) % 9;
  return is_integer ? (step - 4) / 2 : (step - 4) * 0.25;
}

static int is_integer(int element) {
  return element == PYCUTLASS_S8 || element == PYCUTLASS_U8 || element == PYCUTLASS_S32 || element == PYCUTLASS_S64;
}

static double epsilon_of(int element) {
  static double const epsilons[] = {0, 0x1p-52, 0x1p-23, 0x1p-10, 0x1p-10, 0x1p-7, 0, 0, 0, 0x1p-3, 0x1p-2, 0};
  return epsilons[element];
}

typedef struct {
  pycutlass_tensor tensor;
  host_tensor host;
  char* bytes;
  int64_t elements;
  size_t size;
} program_tensor;

static void make_tensor(program_tensor* made, pycutlass_tensor_info const* info, int64_t extent, int seed) {
  pycutlass_tensor* const tensor = &made->tensor;
  tensor->rank = info->rank;
  tensor->element = info->element;
  made->elements = 1;
  for (int axis = 0; axis < info->rank; ++axis) {
    tensor->shape[axis] = info->extents[axis] < 0 ? extent : info->extents[axis];
    made->elements *= tensor->shape[axis];
  }
  int64_t step = 1;
  for (int axis = info->rank - 1; axis >= 0; --axis) {
    tensor->strides[axis] = step;
    step *= tensor->shape[axis];
  }
  if (info->layout == PYCUTLASS_COLUMNS) {
    tensor->strides[info->rank - 1] = tensor->shape[info->rank - 2];
    tensor->strides[info->rank - 2] = 1;
  }
  made->host.rank = info->rank;
  memcpy(made->host.shape, tensor->shape, sizeof tensor->shape);
  memcpy(made->host.strides, tensor->strides, sizeof tensor->strides);
  size_t const each = (size_t)element_bits(info->element) / 8;
  made->size = (size_t)made->elements * each;
  made->bytes = malloc(made->size);
  made->host.values = malloc((size_t)made->elements * sizeof(float));
  if (!made->bytes || !made->host.values) {
    refuse(PYCUTLASS_DRIVER_ERROR, "there is no memory for %s", info->name);
    stop(PYCUTLASS_DRIVER_ERROR);
  }
  for (int64_t i = 0; i < made->elements; ++i) {
    double const value = info->written ? 99 : small_number((uint64_t)i, seed, is_integer(info->element));
    store_number(made->bytes + (size_t)i * each, info->element, value);
    made->host.values[i] = (float)load_number(made->bytes + (size_t)i * each, info->element);
  }
  require(take_memory(&tensor->data, made->size));
  require(to_device(tensor->data, made->bytes, made->size));
}

/// The place of an element of D, which has the number `index`.
static place_in_result place_of(program_tensor const* result, int64_t index) {
  place_in_result place = {{0, 0, 0, 0}};
  int const rank = result->host.rank;
  for (int axis = rank - 1; axis >= 0; --axis) {
    place.at[4 - rank + axis] = index % result->host.shape[axis];
    index /= result->host.shape[axis];
  }
  return place;
}

static int64_t offset_of(program_tensor const* tensor, place_in_result place) {
  int64_t offset = 0;
  for (int axis = 0; axis < tensor->host.rank; ++axis) {
    offset += place.at[4 - tensor->host.rank + axis] * tensor->host.strides[axis];
  }
  return offset;
}

/// Compares what is written at one place; 1 where it is wrong.
static int is_wrong(checked_launch const* checked, program_tensor const* tensors, host_tensor const* hosts,
                    place_in_result place) {
  pycutlass_plan_info const* const info = checked->info;
  double inputs[MOST_TENSORS] = {0}, outputs[MOST_TENSORS], scalars[MOST_SCALARS], sizes = 0;
  for (uint32_t i = 0; i < info->scalar_count; ++i) scalars[i] = info->scalars[i].value;
  int32_t const source = checked->table->roles[PYCUTLASS_C];
  int count = 1;
  if (source >= 0) inputs[0] = value_beside(checked, hosts, (uint32_t)source, place);
  for (uint32_t i = checked->table->first_port; i < info->tensor_count; ++i) {
    if (!info->tensors[i].written) inputs[count++] = value_beside(checked, hosts, i, place);
  }
  outputs_of(sum_of_products(checked, hosts, place, &sizes), inputs, scalars, outputs);
  int number = 0, wrong = 0;
  for (uint32_t i = 0; i < info->tensor_count; ++i) {
    pycutlass_tensor_info const* const tensor = &info->tensors[i];
    if (!tensor->written) continue;
    double const expected = rounded_to(tensor->element, outputs[number++]), size = fabs(expected);
    int64_t const offset = offset_of(&tensors[i], place);
    double const found = load_number(tensors[i].bytes + offset * element_bits(tensor->element) / 8, tensor->element);
    double const tolerance = 2 * epsilon_of(tensor->element) * size + 16 * epsilon_of(compute_element) * (1 + size) +
                             8 * epsilon_of(accumulator_element) * sizes;
    if (fabs(found - expected) <= tolerance || (found != found && expected != expected) || found == expected) continue;
    if (!wrong)
      fprintf(stderr, "%s at (%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ") is %g, expected %g\n", tensor->name,
              place.at[0], place.at[1], place.at[2], place.at[3], found, expected);
    wrong = 1;
  }
  return wrong;
}

/// Compares D and what is written beside it with loops, a part of all elements where there are many.
static int check(checked_launch const* checked, program_tensor* tensors) {
  pycutlass_plan_info const* const info = checked->info;
  host_tensor hosts[MOST_TENSORS];
  for (uint32_t i = 0; i < info->tensor_count; ++i) {
    hosts[i] = tensors[i].host;
    if (info->tensors[i].written) require(to_host(tensors[i].bytes, tensors[i].tensor.data, tensors[i].size));
  }
  program_tensor const* const result = &tensors[checked->table->roles[PYCUTLASS_D]];
  double const products = (double)products_of(checked);
  int64_t step = (int64_t)ceil((double)result->elements * products / MOST_PRODUCTS);
  if (step > 1) step |= 1;
  int64_t wrong = 0, looked = 0;
  for (int64_t i = 0; i < result->elements && wrong < 10; i += step, ++looked) {
    wrong += is_wrong(checked, tensors, hosts, place_of(result, i));
  }
  printf("%" PRId64 " of %" PRId64 " elements compared with plain loops: %s\n", looked, result->elements,
         wrong ? "WRONG" : "right");
  return wrong != 0;
}

int main(int count, char** arguments) {
  char name[256] = "";
  pycutlass_library const* const library = pycutlass_get_library();
  pycutlass_plan_info const* const info = &library->plans[0];
  int64_t const extent = count > 1 ? strtoll(arguments[1], NULL, 10) : usual_extent;
  if (extent < 1) {
    fprintf(stderr, "M, or the number of images, must be 1 at least; got %s\n", arguments[1]);
    return 2;
  }
  require(start_device(name, sizeof name));
  static program_tensor tensors[MOST_TENSORS];
  pycutlass_tensor given[MOST_TENSORS];
  for (uint32_t i = 0; i < info->tensor_count; ++i) {
    make_tensor(&tensors[i], &info->tensors[i], extent, (int)i + 1);
    given[i] = tensors[i].tensor;
  }
  pycutlass_launch launch = {sizeof launch, 1, given, NULL, NULL, 0, NULL};
  static checked_launch checked;
  require(library->workspace_size(0, &launch, &launch.workspace_bytes));
  if (launch.workspace_bytes) require(take_memory(&launch.workspace, launch.workspace_bytes));
  require(check_launch(0, &launch, 0, &checked));
  require(library->run(0, &launch));
  printf("%s on %s: %s\n", info->name, name, info->description);
  int const wrong = check(&checked, tensors);

  double milliseconds = 0;
  require(milliseconds_since(&milliseconds));
  for (int i = 0; i < RUNS; ++i) require(library->run(0, &launch));
  require(milliseconds_since(&milliseconds));
  double const products = (double)tensors[checked.table->roles[PYCUTLASS_D]].elements * (double)products_of(&checked);
  printf("%.4f ms, %.1f GFLOP/s\n", milliseconds / RUNS, 2 * products * RUNS / (milliseconds * 1e6));
  return wrong;
}
