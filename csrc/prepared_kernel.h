// What all launches of one operation on one GPU share, whatever its family: its kernel and what tensors must be. It is
// made once and never changes. Threads may use it at the same time, each for calls of its own.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "given_tensor.h"
#include "launch.h"

namespace pycutlass {

/// A tensor that stands for an operand, and where that is.
struct TakenOperand {
  GivenTensor tensor;
  PlacedOperand placed;
};

/// What the tensors of four operands are, and A, B, C and D themselves.
using GivenOperands = std::array<pybind11::handle, 4>;

/// Those of one call.
struct TakenOperands {
  std::array<TakenOperand, 4> roles;
  bool reads_source = false;  // else C is none of them
  bool followed = false;      // whether autograd follows one that is read

  TakenOperand& operator[](int role) { return roles[static_cast<size_t>(role)]; }
  TakenOperand const& operator[](int role) const { return roles[static_cast<size_t>(role)]; }
};

class PreparedKernel {
 public:
  /// What is asked of Python.
  struct Helpers {
    pybind11::object wrap, stream_source;  // those of pycutlass/tensor
    pybind11::object say_followed;         // says that D has no gradient, of A, B and C
  };

  /// What an operand must be: alignment and type.
  struct Described {
    OperandRule rule;
    ElementType type;
  };

  using Given = std::tuple<OperandRule, int, std::string, pybind11::object>;
  using FourGiven = std::tuple<Given, Given, Given, Given>;

 protected:
  /// The roles of an operation whose tensors are read, in that order. Calls go to the stream of the first one's
  /// library.
  using Roles = std::vector<int>;

  PreparedKernel(pybind11::object kernel, FourGiven const& operands, bool in_place, Helpers helpers,
                 Roles roles = {PYCUTLASS_A, PYCUTLASS_B, PYCUTLASS_D, PYCUTLASS_C});

  Described const& described(int role) const { return described_[static_cast<size_t>(role)]; }
  std::shared_ptr<DeviceKernel> const& kernel() const { return kernel_; }
  /// Reads the tensors of a call that are on this GPU and of one library, and has `place` find each; false where one
  /// needs a closer look, or where D is not apart from what is read.
  template <class Place>
  bool take(GivenOperands const& given, TakenOperands& taken, Place place) const;
  /// Points a call at its operands.
  void enter(Call& call, TakenOperands const& taken, pybind11::bytes const& epilogue) const;
  /// Has a call go to the streams of the library of a tensor that was read.
  void lead(Call& call, GivenTensor const& tensor) const;
  /// Makes the parameters of a call; false where it needs a closer look.
  template <class FamilyCall>
  static bool plan(FamilyCall& call) {
    return call.plan() == 0 && fits_grid(call);
  }
  /// What is handed to Python: the call, and the library of the tensors with the type of one. `followed`: autograd
  /// follows one that is read.
  template <class FamilyCall>
  std::pair<pybind11::object, pybind11::dict> finish(std::unique_ptr<FamilyCall> call, GivenOperands const& given,
                                                     GivenTensor const& target, bool followed) const;
  /// Reads a tensor for `role` that is on this GPU and of the library of `leader`; false where it needs a closer look.
  bool read(int role, pybind11::handle given, GivenTensor const& leader, GivenTensor& tensor, bool& followed) const;

 private:
  static bool fits_grid(Call const& call);
  bool writes_apart(TakenOperands const& taken) const;

  std::shared_ptr<DeviceKernel> kernel_;
  pybind11::object kernel_object_;  // of Python: when it goes, the kernel is unloaded
  std::array<Described, 4> described_;
  bool in_place_;  // whether C may be D itself
  Helpers helpers_;
  Roles roles_;
};

template <class Place>
bool PreparedKernel::take(GivenOperands const& given, TakenOperands& taken, Place place) const {
  for (int role : roles_) {
    bool const is_read = role != PYCUTLASS_C || taken.reads_source;
    if (!is_read && given[PYCUTLASS_C].is_none()) continue;
    GivenTensor& tensor = taken[role].tensor;
    if (!read(role, given[static_cast<size_t>(role)], taken[roles_.front()].tensor, tensor, taken.followed))
      return false;
    if (!is_read) continue;
    std::optional<PlacedOperand> const placed = place(role, tensor);
    if (!placed) return false;
    taken[role].placed = *placed;
  }
  return writes_apart(taken);
}

template <class FamilyCall>
std::pair<pybind11::object, pybind11::dict> PreparedKernel::finish(std::unique_ptr<FamilyCall> call,
                                                                   GivenOperands const& given,
                                                                   GivenTensor const& target, bool followed) const {
  if (followed) helpers_.say_followed(given[PYCUTLASS_A], given[PYCUTLASS_B], given[PYCUTLASS_C]);
  pybind11::object made = pybind11::cast(std::move(call));
  pybind11::detail::keep_alive_impl(made, kernel_object_);  // whose end unloads the kernel
  pybind11::dict libraries;
  libraries[target.library()] = pybind11::type::of(target.tensor());
  return {std::move(made), std::move(libraries)};
}

/// The result of a function that makes a call; None where a tensor raises when it is asked: the checks in Python
/// explain.
template <class Make>
pybind11::object unless_refused(Make make) {
  try {
    return make();
  } catch (pybind11::error_already_set const& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return pybind11::none();
  } catch (pybind11::cast_error const&) {  // it says something else than a number where there should be one
    return pybind11::none();
  }
}

}  // namespace pycutlass
