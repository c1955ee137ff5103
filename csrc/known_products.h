// Products in one line whose options and tensors are like those of earlier ones: launched without a plan being looked
// for.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <vector>

#include "launch_pool.h"

namespace pycutlass {

class KnownProducts {
 public:
  /// alpha, beta, epilogue, out_dtype, accumulator_dtype and precision, as the caller gave them.
  static constexpr size_t kOptions = 6;
  using Options = std::array<PyObject*, kOptions>;

  /// `precision_of` is asked, with a, how float32 is multiplied where the caller does not say.
  explicit KnownProducts(pybind11::object precision_of) : precision_of_(std::move(precision_of)) {}

  /// Has the launch of a product wait for others. `precision` is the answer for `a`; `make_result` is None where
  /// the caller gave one.
  bool keep(pybind11::tuple const& launch, pybind11::tuple const& tensors, pybind11::tuple const& options, bool as_bias,
            pybind11::object precision, pybind11::object make_result, unsigned long chosen_in);
  /// matmul(a, b, ...); null without an exception where no launch waits for it.
  PyObject* serve(PyObject* const* given, Py_ssize_t count, PyObject* keywords);
  void clear();
  /// How many launches wait.
  size_t size() const;

 private:
  /// What products with equal options share.
  struct Known {
    std::array<pybind11::object, kOptions> options;
    bool as_bias;
    pybind11::object precision;
    std::shared_ptr<LaunchPool> pool = std::make_shared<LaunchPool>();
  };
  /// A program may have ever other scalars: of so many options, the first go.
  static constexpr size_t kMost = 64;

  static bool matches(Known const& known, Options const& options, bool as_bias);
  bool run(Known& known, LaunchTensors const& tensors);

  pybind11::object precision_of_;
  std::vector<std::shared_ptr<Known>> known_;
};

void bind_known_products(pybind11::module_& m);

}  // namespace pycutlass
