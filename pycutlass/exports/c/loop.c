// A plan as plain loops: products of matrices, convolutions and their gradients, by their definitions.
#include "loop.h"

#include <math.h>

static double at(host_tensor const* tensor, int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t const index[] = {a, b, c, d};
  int64_t offset = 0;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    offset += index[4 - tensor->rank + axis] * tensor->strides[axis];
  }
  return tensor->values[offset];
}

typedef struct {
  double sum, sizes;
} running_sum;

static void add_product(running_sum* running, double left, double right) {
  running->sum += left * right;
  running->sizes += fabs(left * right);
}

static running_sum sum_of_gemm(checked_launch const* checked, host_tensor const* a, host_tensor const* b,
                               place_in_result place) {
  int64_t const matrix = place.at[1], row = place.at[2], column = place.at[3];
  running_sum running = {0, 0};
  for (int64_t k = 0; k < checked->table->k; ++k) {
    add_product(&running, at(a, 0, matrix, row, k), at(b, 0, matrix, k, column));
  }
  return running;
}

typedef struct {
  int32_t n, h, w, c, k, r, s, p, q, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, mode, groups;
} conv_size;

/// The tap of a filter, as it is stored: a convolution, in the words of mathematics, turns it round.
static int64_t stored_tap(conv_size const* size, int64_t tap, int64_t taps) {
  return size->mode == 1 ? taps - 1 - tap : tap;
}

static running_sum sum_of_fprop(conv_size const* size, host_tensor const* x, host_tensor const* filter,
                                place_in_result place) {
  running_sum running = {0, 0};
  int64_t const n = place.at[0], p = place.at[1], q = place.at[2], k = place.at[3];
  int64_t const channels = size->c / size->groups, first = k / (size->k / size->groups) * channels;
  for (int64_t r = 0; r < size->r; ++r) {
    for (int64_t s = 0; s < size->s; ++s) {
      int64_t const h = p * size->stride_h - size->pad_h + r * size->dilation_h;
      int64_t const w = q * size->stride_w - size->pad_w + s * size->dilation_w;
      if (h < 0 || h >= size->h || w < 0 || w >= size->w) continue;
      for (int64_t c = 0; c < channels; ++c) {
        double const weight = at(filter, k, stored_tap(size, r, size->r), stored_tap(size, s, size->s), c);
        add_product(&running, at(x, n, h, w, first + c), weight);
      }
    }
  }
  return running;
}

static running_sum sum_of_dgrad(conv_size const* size, host_tensor const* dy, host_tensor const* filter,
                                place_in_result place) {
  running_sum running = {0, 0};
  int64_t const n = place.at[0], h = place.at[1], w = place.at[2], c = place.at[3];
  for (int64_t r = 0; r < size->r; ++r) {
    for (int64_t s = 0; s < size->s; ++s) {
      int64_t const down = h + size->pad_h - r * size->dilation_h, across = w + size->pad_w - s * size->dilation_w;
      if (down < 0 || across < 0 || down % size->stride_h || across % size->stride_w) continue;
      int64_t const p = down / size->stride_h, q = across / size->stride_w;
      if (p >= size->p || q >= size->q) continue;
      for (int64_t k = 0; k < size->k; ++k) {
        double const weight = at(filter, k, stored_tap(size, r, size->r), stored_tap(size, s, size->s), c);
        add_product(&running, at(dy, n, p, q, k), weight);
      }
    }
  }
  return running;
}

static running_sum sum_of_wgrad(conv_size const* size, int64_t images, host_tensor const* dy, host_tensor const* x,
                                place_in_result place) {
  running_sum running = {0, 0};
  int64_t const k = place.at[0], c = place.at[3];
  int64_t const r = stored_tap(size, place.at[1], size->r), s = stored_tap(size, place.at[2], size->s);
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t p = 0; p < size->p; ++p) {
      for (int64_t q = 0; q < size->q; ++q) {
        int64_t const h = p * size->stride_h - size->pad_h + r * size->dilation_h;
        int64_t const w = q * size->stride_w - size->pad_w + s * size->dilation_w;
        if (h < 0 || h >= size->h || w < 0 || w >= size->w) continue;
        add_product(&running, at(dy, n, p, q, k), at(x, n, h, w, c));
      }
    }
  }
  return running;
}

double sum_of_products(checked_launch const* checked, host_tensor const* tensors, place_in_result place,
                       double* sizes) {
  plan_table const* const table = checked->table;
  host_tensor const *a = &tensors[table->roles[PYCUTLASS_A]], *b = &tensors[table->roles[PYCUTLASS_B]];
  conv_size const* const size = (conv_size const*)table->conv;
  running_sum const found = table->family == FAMILY_GEMM ? sum_of_gemm(checked, a, b, place)
                            : table->is_wgrad            ? sum_of_wgrad(size, checked->extents[0], a, b, place)
                            : table->is_dgrad            ? sum_of_dgrad(size, a, b, place)
                                                         : sum_of_fprop(size, a, b, place);
  *sizes = found.sizes;
  return found.sum;
}

int64_t products_of(checked_launch const* checked) {
  plan_table const* const table = checked->table;
  conv_size const* const size = (conv_size const*)table->conv;
  if (table->family == FAMILY_GEMM) return table->k;
  if (table->is_wgrad) return checked->extents[0] * size->p * size->q;
  return (int64_t)size->r * size->s * (table->is_dgrad ? size->k : size->c / size->groups);
}

double value_beside(checked_launch const* checked, host_tensor const* tensors, uint32_t index, place_in_result place) {
  host_tensor const* const tensor = &tensors[index];
  pycutlass_tensor_info const* const info = &checked->info->tensors[index];
  if (info->layout != PYCUTLASS_LINE) return at(tensor, place.at[0], place.at[1], place.at[2], place.at[3]);
  int64_t const extent = info->extents[info->rank - 1];
  int64_t const along = tensor->shape[tensor->rank - 1] == 1 ? 0
                        : extent == PYCUTLASS_EXTENT_M       ? place.at[2]
                                                             : place.at[3];
  return at(tensor, 0, 0, tensor->rank == 2 ? place.at[1] : 0, along);
}
