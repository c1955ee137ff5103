// What a launch says of its tensors, checked as the plan describes them. Nothing here asks the driver anything: what is
// refused is refused before that.
#include <string.h>

#include "kernel.h"

enum { ROWS = PYCUTLASS_ROWS, COLUMNS = PYCUTLASS_COLUMNS, LINE = PYCUTLASS_LINE, PIXELS = PYCUTLASS_PIXELS };

static int64_t const LD_END = INT64_C(1) << 31;       // CUTLASS keeps leading dimensions in 32 bits
static int64_t const ADDRESSABLE = INT64_C(1) << 57;  // bytes

int element_bits(int element) {
  static uint8_t const bits[] = {0, 64, 32, 32, 16, 16, 32, 8, 64, 8, 8, 8};
  return element < (int)sizeof bits ? bits[element] : 0;
}

static char const* element_name(int element) {
  static char const* const names[] = {"none",  "float64", "float32", "tf32",        "float16",     "bfloat16",
                                      "int32", "int8",    "int64",   "float8_e4m3", "float8_e5m2", "uint8"};
  return element < (int)(sizeof names / sizeof *names) ? names[element] : "an unknown type";
}

#define REFUSE(...) return refuse(PYCUTLASS_INVALID_ARGUMENT, __VA_ARGS__)

// What a tensor is to be

/// Compares one dimension with what the plan says, or learns an extent that the launch chooses.
static int check_extent(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted, int axis, int64_t extent,
                        int64_t* extents) {
  int64_t expected = wanted->extents[axis];
  char const* which = "as the plan was made for";
  if (expected < 0) {
    int64_t* const chosen = &extents[-expected - 1];
    if (*chosen < 0) {
      if (extent < 1)
        REFUSE("%s: %s has an extent of %lld in dimension %d: it must have one element at least", info->name,
               wanted->name, (long long)extent, axis);
      *chosen = extent;
    }
    expected = *chosen;
    which = "as the tensors before it say";
  }
  if (extent != expected) {
    REFUSE("%s: dimension %d of %s must be %lld, %s; got %lld", info->name, axis, wanted->name, (long long)expected,
           which, (long long)extent);
  }
  return PYCUTLASS_SUCCESS;
}

/// A tensor of which a batch shares one has a dimension less.
static int lead_of(pycutlass_tensor_info const* wanted, pycutlass_tensor const* given) {
  return wanted->shared && given->rank + 1 == wanted->rank ? 1 : 0;
}

static int check_shape(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted,
                       pycutlass_tensor const* given, int64_t* extents) {
  int const lead = lead_of(wanted, given);
  if (given->rank + lead != wanted->rank) {
    REFUSE("%s: %s must have %d dimensions; got %d", info->name, wanted->name, wanted->rank, given->rank);
  }
  int const is_float = wanted->element == PYCUTLASS_TF32 && given->element == PYCUTLASS_F32;
  if (given->element != wanted->element && !is_float) {
    REFUSE("%s: %s must be of %s; got %s: convert it", info->name, wanted->name,
           element_name(is_float ? PYCUTLASS_F32 : wanted->element), element_name(given->element));
  }
  for (int axis = 0; axis < given->rank; ++axis) {
    int const failed = check_extent(info, wanted, axis + lead, given->shape[axis], extents);
    if (failed) return failed;
  }
  return PYCUTLASS_SUCCESS;
}

// Where it is

typedef struct {
  int64_t line, lines, ld, batch, batch_stride;
} tensor_lines;

static int lines_of_pixels(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted,
                           pycutlass_tensor const* given, tensor_lines* at) {
  int64_t const n = given->shape[0], h = given->shape[1], w = given->shape[2], c = given->shape[3];
  int64_t const* const strides = given->strides;
  int64_t const step = w > 1 ? strides[2] : h > 1 ? strides[1] : n > 1 ? strides[0] : c;
  int const regular = (h == 1 || strides[1] == w * step) && (n == 1 || strides[0] == h * w * step);
  if (!regular || step < c || (c != 1 && strides[3] != 1)) {
    REFUSE(
        "%s: %s must have adjacent channels and one step between pixels; got strides %lld, %lld, %lld, %lld of the "
        "dimensions N, H, W, C: pass a contiguous copy",
        info->name, wanted->name, (long long)strides[0], (long long)strides[1], (long long)strides[2],
        (long long)strides[3]);
  }
  *at = (tensor_lines){c, n * h * w, step, 1, 0};
  return PYCUTLASS_SUCCESS;
}

static int lines_of_matrix(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted,
                           pycutlass_tensor const* given, tensor_lines* at) {
  int const by_rows = wanted->layout == ROWS, lead = given->rank == 3;
  int64_t const *shape = given->shape + lead, *strides = given->strides + lead;
  *at = (tensor_lines){shape[by_rows], shape[!by_rows], strides[!by_rows], lead ? given->shape[0] : 1,
                       lead ? given->strides[0] : 0};
  if (strides[by_rows] != 1 && at->line != 1) {
    REFUSE("%s: elements of %s must be adjacent along its %s, which have a step of %lld: pass a contiguous copy",
           info->name, wanted->name, by_rows ? "rows" : "columns", (long long)strides[by_rows]);
  }
  if (at->lines == 1) at->ld = at->line;
  return PYCUTLASS_SUCCESS;
}

static int lines_of_vector(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted,
                           pycutlass_tensor const* given, tensor_lines* at) {
  int const lead = given->rank == 2;
  *at = (tensor_lines){given->shape[lead], 1, 0, lead ? given->shape[0] : 1, lead ? given->strides[0] : 0};
  if (at->line != 1 && given->strides[lead] != 1) {
    REFUSE("%s: %s must be contiguous; got a stride of %lld: pass a contiguous copy", info->name, wanted->name,
           (long long)given->strides[lead]);
  }
  return PYCUTLASS_SUCCESS;
}

static int check_steps(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted, tensor_lines const* at) {
  if (wanted->layout != LINE && (at->ld < at->line || at->ld >= LD_END)) {
    REFUSE("%s: lines of %s have %lld elements and a step of %lld: it must be %lld to 2147483647", info->name,
           wanted->name, (long long)at->line, (long long)at->ld, (long long)at->line);
  }
  int64_t const extent = (at->lines - 1) * at->ld + at->line;
  int64_t const least = wanted->written && at->batch > 1 ? extent : 0;
  if (at->batch_stride < least || (at->batch_stride == 0 && at->batch > 1 && !wanted->shared)) {
    REFUSE("%s: the matrices of %s have a step of %lld: it must be %lld at least", info->name, wanted->name,
           (long long)at->batch_stride, (long long)(least ? least : 1));
  }
  int64_t const most = ADDRESSABLE / (element_bits(wanted->element) / 8);
  if (extent > most || (at->batch > 1 && at->batch_stride > (most - extent) / (at->batch - 1))) {
    REFUSE("%s: %s reaches further than a GPU can address", info->name, wanted->name);
  }
  return PYCUTLASS_SUCCESS;
}

static int check_alignment(pycutlass_plan_info const* info, pycutlass_tensor_info const* wanted, void const* data,
                           tensor_lines const* at, int alignment) {
  int64_t const steps[] = {at->line, at->ld, at->batch_stride};
  static char const* const names[] = {"the length of its lines", "the step between them", "the step between matrices"};
  for (int i = 0; i < 3; ++i) {
    if (steps[i] % alignment) {
      REFUSE("%s: %s must be aligned to %d elements, and %s is %lld: pass a copy that is, or export a plan for it",
             info->name, wanted->name, alignment, names[i], (long long)steps[i]);
    }
  }
  int const bytes = alignment * element_bits(wanted->element) / 8;
  if ((uintptr_t)data % (unsigned)bytes) {
    REFUSE("%s: %s must be aligned to %d bytes, and its address is %p: pass a copy that is, or export a plan for it",
           info->name, wanted->name, bytes, data);
  }
  return PYCUTLASS_SUCCESS;
}

static int place(checked_launch* checked, uint32_t index, pycutlass_tensor const* given, int is_sized) {
  pycutlass_plan_info const* const info = checked->info;
  pycutlass_tensor_info const* const wanted = &info->tensors[index];
  tensor_lines at = {0, 0, 0, 0, 0};
  int failed = wanted->layout == PIXELS ? lines_of_pixels(info, wanted, given, &at)
               : wanted->layout == LINE ? lines_of_vector(info, wanted, given, &at)
                                        : lines_of_matrix(info, wanted, given, &at);
  if (!failed) failed = check_steps(info, wanted, &at);
  if (failed) return failed;
  if (!given->data && !is_sized) REFUSE("%s: %s is missing: its address is null", info->name, wanted->name);
  failed = check_alignment(info, wanted, given->data, &at, checked->variant->alignment[index]);
  if (failed) return failed;
  int64_t const elements = (at.lines - 1) * at.ld + at.line;
  uint64_t const bytes =
      (uint64_t)((at.batch - 1) * at.batch_stride + elements) * (uint64_t)element_bits(wanted->element) / 8;
  uint64_t const limit = checked->variant->byte_limit;
  if (limit && bytes >= limit) {
    REFUSE("%s: %s spans %llu bytes, and the kernel takes less than %llu: divide the images", info->name, wanted->name,
           (unsigned long long)bytes, (unsigned long long)limit);
  }
  placed_tensor const made = {given->data, at.ld, at.batch > 1 ? at.batch_stride : 0, bytes,
                              at.ld ? PYCUTLASS_TENSOR : PYCUTLASS_VECTOR};
  checked->tensors[index] = made;
  return PYCUTLASS_SUCCESS;
}

/// What is written may lie over nothing else, but for what kernels read element for element before they write.
static int check_apart(checked_launch const* checked, pycutlass_tensor const* given) {
  pycutlass_plan_info const* const info = checked->info;
  for (uint32_t i = 0; i < info->tensor_count; ++i) {
    if (!info->tensors[i].written) continue;
    placed_tensor const* const written = &checked->tensors[i];
    for (uint32_t j = 0; j < info->tensor_count; ++j) {
      placed_tensor const* const other = &checked->tensors[j];
      char const *begin = written->data, *others = other->data;
      if (i == j || begin >= others + other->bytes || others >= begin + written->bytes) continue;
      int const same = begin == others && written->ld == other->ld && written->batch_stride == other->batch_stride &&
                       written->bytes == other->bytes && given[i].element == given[j].element;
      if (same && checked->table->in_place[j] && i == (uint32_t)checked->table->roles[PYCUTLASS_D]) continue;
      REFUSE("%s: %s is written and shares memory with %s: pass others", info->name, info->tensors[i].name,
             info->tensors[j].name);
    }
  }
  return PYCUTLASS_SUCCESS;
}

static int choose_variant(checked_launch* checked) {
  plan_table const* const table = checked->table;
  int64_t const m = checked->extents[0];
  if (m > checked->info->most_extent) {
    REFUSE("%s: M, or the number of images, is %lld, and the plan takes %lld at most: divide it", checked->info->name,
           (long long)m, (long long)checked->info->most_extent);
  }
  plan_variant const* found = &table->variants[table->variant_count - 1];
  for (uint32_t i = table->variant_count; i-- > 0;) {  // those of the least M come first, single ones before ranges
    if (m <= table->variants[i].most) found = &table->variants[i];
  }
  for (uint32_t i = 0; i < table->variant_count; ++i) {
    plan_variant const* const each = &table->variants[i];
    if (each->least == each->most && m == each->most) found = each;
  }
  if (m % found->m_step) {
    REFUSE("%s: M must be a multiple of %d, as the kernel loads columns of C; got %lld", checked->info->name,
           found->m_step, (long long)m);
  }
  checked->variant = found;
  return PYCUTLASS_SUCCESS;
}

int check_launch(int32_t plan, pycutlass_launch const* launch, int is_sized, checked_launch* checked) {
  if (plan < 0 || (uint32_t)plan >= plan_count) REFUSE("there is no plan %d: the library has %u", plan, plan_count);
  if (!launch || launch->struct_size != sizeof *launch) {
    REFUSE(
        "the launch has a struct_size of %u, and this library takes %zu: set it to sizeof(pycutlass_launch), and "
        "compile with the header of the library",
        launch ? launch->struct_size : 0, sizeof *launch);
  }
  pycutlass_plan_info const* const info = checked->info = &plan_infos[plan];
  checked->table = &plan_tables[plan];
  if (!launch->tensors) REFUSE("%s: tensors is null: pass %u, as the plan lists them", info->name, info->tensor_count);
  if (launch->problems != 1 && !info->is_group) REFUSE("%s: problems must be 1; got %u", info->name, launch->problems);
  for (int i = 0; i < 3; ++i) checked->extents[i] = -1;
  int failed = PYCUTLASS_SUCCESS;
  for (uint32_t i = 0; i < info->tensor_count && !failed; ++i) {
    failed = check_shape(info, &info->tensors[i], &launch->tensors[i], checked->extents);
  }
  if (!failed) failed = choose_variant(checked);
  for (uint32_t i = 0; i < info->tensor_count && !failed; ++i) {
    failed = place(checked, i, &launch->tensors[i], is_sized);
  }
  if (!failed && !is_sized) failed = check_apart(checked, launch->tensors);
  for (uint32_t i = 0; i < info->scalar_count && !failed; ++i) {
    pycutlass_scalar const usual = {info->scalars[i].value, NULL};
    checked->scalars[i] = launch->scalars ? launch->scalars[i] : usual;
    if (checked->scalars[i].address && !info->scalars[i].on_device) {
      failed = refuse(PYCUTLASS_INVALID_ARGUMENT, "%s: the scalar %s must be a number, and has an address", info->name,
                      info->scalars[i].name);
    }
  }
  int const beta = checked->table->beta;
  if (failed || beta < 0 || checked->table->roles[PYCUTLASS_C] >= 0) return failed;
  if (checked->scalars[beta].address || checked->scalars[beta].value != 0) {
    REFUSE("%s: beta is not 0, and the plan has no c that it could scale: leave it at 0, or export a plan with c",
           info->name);
  }
  return PYCUTLASS_SUCCESS;
}
