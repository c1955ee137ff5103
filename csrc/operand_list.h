// One operand of all problems of a group, and tensors that take the place of those that it has.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "given_tensor.h"
#include "operand_rule.h"
#include "overlap.h"
#include "tensor_signature.h"
#include "tensor_guard.h"

namespace pycutlass {

/// Rows and columns of an operand in every problem, out of the sizes M, N, K of all.
struct OperandExtents {
  std::vector<int32_t> const& sizes;
  size_t rows_at, columns_at;  // of M, N, K

  size_t count() const { return sizes.size() / 3; }
  int64_t rows(size_t problem) const { return sizes[3 * problem + rows_at]; }
  int64_t columns(size_t problem) const { return sizes[3 * problem + columns_at]; }
  bool operator==(OperandExtents const& other) const;
};

struct OperandList {
  std::vector<uint64_t> pointers;
  std::vector<uint64_t> next;  // those of an exchange, until it is known to fit
  std::vector<int64_t> lds;
  std::vector<Span> spans;
  std::vector<TensorSignature> forms;
  std::vector<TensorGuard> guards;
  OperandRule rule;
  bool plain = false;  // whether each guard simply goes over to tensors of the form
  // Where what was read is, and what has to be watched anew when it takes the place of those before.
  std::vector<TorchPlace> next_places;
  std::vector<std::pair<size_t, TensorGuard>> next_guards;
  pybind11::object tensors;  // what the pointers point into: a tuple, with None for what is not kept alive here

  void resize(size_t count);
  void place(size_t problem, Span const& span, int64_t ld);
  /// Keeps the tensors alive, and knows their forms. `written`: launches write to them.
  void remember(pybind11::tuple const& given, bool written);

  /// Takes a tensor that was read for a problem; false where it needs a closer look. `written`: launches write to it.
  bool take_given(size_t problem, GivenTensor const& tensor, OperandExtents const& extents, bool written);
  /// Keeps the tensors alive that were taken one by one: `given` is a tuple of them.
  void hold(pybind11::handle given);

  /// Whether there is a tensor of the remembered form for every problem; if so, `next` has their addresses.
  bool read(pybind11::handle given);
  /// Goes over to what was read; once more goes back.
  void exchange();
  /// Keeps the tensors that were read in place of those before them. Nothing here can fail.
  void keep(pybind11::handle given);
  /// Throws ArgumentError where the memory of a tensor was moved since it was given; `letter` is what operand this is.
  void check_unmoved(char letter) const;

  /// Whether every problem has a tensor whose form is remembered.
  bool remembers_all() const;
  /// Becomes the operand that `given` is, with such extents; false where a tensor needs a closer look. They are of the
  /// type, the element type and the device of those that `like` remembers.
  bool take(OperandList const& like, pybind11::handle given, OperandExtents const& extents);

 private:
  bool take_one(size_t problem, TensorView const& view, int64_t rows, int64_t columns);
  bool takes_plainly() const;
  size_t plainly_unmoved(size_t from) const;
  size_t read_plainly(PyObject* const* items, size_t from);
};

/// Adds read_operands, by which the tests see what `OperandList::take` does.
void bind_operand_list(pybind11::module_& m);

}  // namespace pycutlass
