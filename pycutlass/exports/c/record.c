// From a launch that was checked to the call record of a kernel, and the arguments of its epilogue.
#include <string.h>

#include "kernel.h"
#include "numbers.h"

static void fill_common(loaded_kernel const* kernel, any_record* record) {
  memset(record, 0, sizeof *record);
  record->common.struct_size = kernel->info.call_bytes;
  record->common.device = kernel->device;
  record->common.sm_count = kernel->sm_count;
  record->common.sm_occupancy = kernel->occupancy;
}

static void fill_operand(loaded_kernel const* kernel, any_record* record, int role, placed_tensor const* tensor) {
  pycutlass_operand* const operand = &record->common.operands[role];
  operand->data = tensor->data;
  operand->stride[0] = tensor->ld;
  operand->stride[1] = tensor->batch_stride;
  operand->element = kernel->info.elements[role];
  operand->form = tensor->form;
}

/// The product as a matrix, of which there is a plane of partial sums for each slice. That of a filter gradient has a
/// row for each filter.
void product_size(checked_launch const* checked, int64_t* rows, int64_t* columns) {
  plan_table const* const table = checked->table;
  *rows = checked->extents[0];
  *columns = table->n;
  if (table->family == FAMILY_GEMM) return;
  int64_t extents[PYCUTLASS_MAX_RANK];
  for (int axis = 0; axis < PYCUTLASS_MAX_RANK; ++axis) {
    int64_t const extent = checked->info->tensors[table->roles[PYCUTLASS_D]].extents[axis];
    extents[axis] = extent < 0 ? checked->extents[0] : extent;
  }
  *rows = table->is_wgrad ? extents[0] : extents[0] * extents[1] * extents[2];
  *columns = table->is_wgrad ? extents[1] * extents[2] * extents[3] : extents[3];
}

static void fill_gemm(checked_launch const* checked, any_record* record) {
  plan_table const* const table = checked->table;
  plan_variant const* const variant = checked->variant;
  pycutlass_gemm_call* const gemm = &record->gemm;
  gemm->mode = variant->mode;
  gemm->m = (int32_t)checked->extents[0];
  gemm->n = table->n;
  gemm->k = table->k;
  gemm->batch_count = table->batch ? table->batch : variant->slices;
  gemm->max_swizzle = variant->max_swizzle;
  gemm->raster_order = variant->raster_order;
}

static void fill_conv2d(checked_launch const* checked, any_record* record) {
  plan_variant const* const variant = checked->variant;
  pycutlass_conv2d_call* const conv = &record->conv2d;
  int32_t const* const size = checked->table->conv;
  memcpy(&conv->n, size, 15 * sizeof *size);  // n to dilation_w lie one behind the other
  if (checked->extents[0] > 0) conv->n = (int32_t)checked->extents[0];
  conv->mode = size[15];
  conv->groups = size[16];
  conv->split_k_slices = variant->slices;
  conv->split_k_mode = variant->mode;
}

int fill_record(checked_launch const* checked, loaded_kernel const* kernel, any_record* record) {
  plan_table const* const table = checked->table;
  static uint32_t const sizes[] = {sizeof(pycutlass_gemm_call), sizeof(pycutlass_conv2d_call),
                                   sizeof(pycutlass_grouped_call)};
  if (kernel->info.call_bytes != sizes[table->family]) {
    return refuse(PYCUTLASS_DAMAGED, "kernel %s takes another family's call record", kernel->stored->name);
  }
  fill_common(kernel, record);
  int const last = checked->variant->reduction < 0 ? PYCUTLASS_D : PYCUTLASS_B;
  for (int role = 0; role <= last; ++role) {
    if (table->roles[role] >= 0) fill_operand(kernel, record, role, &checked->tensors[table->roles[role]]);
  }
  if (table->family == FAMILY_GEMM) fill_gemm(checked, record);
  if (table->family == FAMILY_CONV2D) fill_conv2d(checked, record);
  if (checked->variant->reduction >= 0) {  // partial sums go to a plane for each slice
    int64_t rows, columns;
    product_size(checked, &rows, &columns);
    pycutlass_tensor_info const* const target = &checked->info->tensors[table->roles[PYCUTLASS_D]];
    int64_t const line = target->layout == PYCUTLASS_PIXELS ? target->extents[3] : table->by_rows ? columns : rows;
    placed_tensor const sums = {NULL, line, rows * columns, 0, PYCUTLASS_TENSOR};
    fill_operand(kernel, record, PYCUTLASS_D, &sums);
  }
  return PYCUTLASS_SUCCESS;
}

int fill_reduction(checked_launch const* checked, loaded_kernel const* kernel, void* sums, any_record* record) {
  if (kernel->info.call_bytes != sizeof(pycutlass_reduction_call)) {
    return refuse(PYCUTLASS_DAMAGED, "kernel %s takes another family's call record", kernel->stored->name);
  }
  fill_common(kernel, record);
  plan_table const* const table = checked->table;
  int64_t rows, columns;
  product_size(checked, &rows, &columns);
  int64_t const line = table->by_rows ? columns : rows, lines = table->by_rows ? rows : columns;
  placed_tensor const planes = {sums, line, rows * columns, 0, PYCUTLASS_TENSOR};
  fill_operand(kernel, record, PYCUTLASS_A, &planes);
  for (int role = PYCUTLASS_C; role <= PYCUTLASS_D; ++role) {
    if (table->roles[role] < 0) continue;
    placed_tensor tensor = checked->tensors[table->roles[role]];
    if (table->is_wgrad) tensor.ld = columns;  // it has no gaps
    fill_operand(kernel, record, role, &tensor);
  }
  record->reduction.rows = (int32_t)lines;
  record->reduction.columns = (int32_t)line;
  record->reduction.partitions = checked->variant->slices;
  return PYCUTLASS_SUCCESS;
}

// Arguments of epilogues

static int32_t find_scalar(checked_launch const* checked, char const* name) {
  for (uint32_t i = 0; i < checked->info->scalar_count; ++i) {
    if (!strcmp(checked->info->scalars[i].name, name)) return (int32_t)i;
  }
  return -1;
}

static placed_tensor const* find_port(checked_launch const* checked, char const* name) {
  for (uint32_t i = checked->table->first_port; i < checked->info->tensor_count; ++i) {
    if (!strcmp(checked->info->tensors[i].name, name)) return &checked->tensors[i];
  }
  return NULL;
}

int fill_epilogue(checked_launch const* checked, loaded_kernel const* kernel, void* arguments) {
  memset(arguments, 0, kernel->info.epilogue_bytes);
  int const is_partial =
      checked->variant->reduction >= 0 && kernel->info.call_bytes != sizeof(pycutlass_reduction_call);
  for (uint32_t i = 0; i < kernel->field_count; ++i) {
    pycutlass_epilogue_field const* const field = &kernel->fields[i];
    char* const at = (char*)arguments + field->offset;
    int32_t const scalar = find_scalar(checked, field->name);
    placed_tensor const* const port = find_port(checked, field->name);
    if (is_partial) {  // alpha is 1 and beta 0 in partial sums
      if (field->kind == PYCUTLASS_VALUE) store_number(at, field->element, !strcmp(field->name, "alpha"));
    } else if (field->kind == PYCUTLASS_VALUE && scalar >= 0) {
      store_number(at, field->element, checked->scalars[scalar].value);
    } else if (field->kind == PYCUTLASS_ADDRESS && (scalar >= 0 || port)) {
      void const* const address = scalar >= 0 ? checked->scalars[scalar].address : port->data;
      memcpy(at, &address, sizeof address);
    } else if (field->kind == PYCUTLASS_STRIDE && (scalar >= 0 || port)) {
      int64_t const stride = !port || field->index > 1 ? 0 : field->index ? port->batch_stride : port->ld;
      memcpy(at, &stride, sizeof stride);
    } else {
      return refuse(PYCUTLASS_DAMAGED, "the epilogue of kernel %s takes %s, which the plan lacks", kernel->stored->name,
                    field->name);
    }
  }
  return PYCUTLASS_SUCCESS;
}
