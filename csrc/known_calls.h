// Calls of a function like earlier ones: their launches are made again without the function, which chose them.
// What tells calls apart is all that they are given: tensors of torch by what they look like, all else by its value.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "launch_pool.h"
#include "torch_impl.h"

namespace pycutlass {

class KnownCalls {
 public:
  /// The names of a function's parameters, of which the first `positional` may be given without a name; what each is
  /// where it is not given, Ellipsis where it must be; the functions that return the settings of torch that float32 is
  /// computed by, by who asks for them; classes of frozen values, which are equal if they are the same; and whether a
  /// tensor may be written that requires a gradient, where none is followed.
  KnownCalls(pybind11::tuple const& names, size_t positional, pybind11::tuple defaults, pybind11::dict settings,
             pybind11::tuple constants, bool writes_parameters);

  /// Keeps what a call has launched.
  ///
  /// `values` are those of all parameters. `written` are numbers of tensors among them that launches write. `makers`
  /// make the tensors that the call made, which are counted on from those that it was given. Each of `launches` is a
  /// pool and its tensors, each of them None, or the number of a tensor with its extents, strides and how many elements
  /// behind the tensor's own beginning it begins, or with None in the place of these three where it is the whole
  /// tensor. `returned` are numbers of tensors, or None: a list, a tuple, or one. `settings` are those that were asked
  /// for, by who asked; None where none was.
  void keep(pybind11::tuple const& values, std::vector<size_t> written, pybind11::tuple const& makers,
            pybind11::list const& launches, pybind11::object returned, pybind11::object settings);
  /// What an earlier call like this one returned, made anew; null without an exception where none was like it.
  PyObject* serve(PyObject* const* given, Py_ssize_t count, PyObject* keywords);
  void clear();
  size_t size() const { return order_.size(); }

 private:
  static constexpr size_t kMostParameters = 24, kMostParts = 64;
  /// Of so many calls, the earliest go.
  static constexpr size_t kMost = 1024;

  /// What a call is given: the values of its parameters, lists and dictionaries taken apart.
  struct Given {
    /// A value that is no tensor; or null, and `length` is -1 for a tensor, how many of the next belong to a list, or
    /// -2 less how many pairs to a dictionary.
    struct Part {
      PyObject* value;
      int64_t length;
    };
    std::array<Part, kMostParts> parts;
    std::array<pybind11::object, LaunchTensors::kMost> tensors;  // of lists, from which others may take them
    size_t part_count = 0, tensor_count = 0;
    uint64_t key = 0;
  };
  struct Operand {
    int64_t tensor = -1;                // none
    pybind11::object extents, strides;  // null for the whole tensor
    int64_t offset = 0;
  };
  struct Launch {
    std::shared_ptr<LaunchPool> pool;
    std::vector<Operand> operands;
  };
  struct Known {
    uint64_t key = 0;
    std::vector<std::pair<pybind11::object, int64_t>> parts;
    std::vector<TorchForm> forms;
    std::vector<size_t> written;
    std::vector<pybind11::object> makers;
    std::vector<Launch> launches;
    pybind11::object returned, settings;
  };
  class Remade;

  bool take(PyObject* const* values, Given& given) const;
  bool take(PyObject* value, Given& given) const;
  bool take_part(PyObject* value, Given& given) const;
  bool is_tensor(PyObject* value) const;
  bool is_constant(PyObject* value) const;
  void find_torch();
  static bool matches(Known const& known, Given const& given);
  static bool writes_apart(Known const& known, Given const& given);
  bool may_write(Known const& known, Given const& given) const;
  bool has_settings_of(Known const& known) const;
  pybind11::object launch(Known const& known, Given const& given) const;

  std::vector<pybind11::object> names_, defaults_;
  size_t positional_;
  pybind11::dict settings_;
  pybind11::tuple constants_;
  bool writes_parameters_;
  // Of torch, once a call was kept.
  pybind11::object tensor_type_, parameter_type_, dtype_type_, size_type_, below_autograd_;
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Known const>>> known_;
  std::deque<std::shared_ptr<Known const>> order_;
};

void bind_known_calls(pybind11::module_& m);

}  // namespace pycutlass
