// The epilogue of tests/unit/extra_epilogue.py: its tensors, and what must come out.
#pragma once

#include "launch.h"

namespace emulation {

/// All tensors of the epilogue for a D of m x n.
struct ExtraCheck {
  using Second = std::remove_pointer_t<decltype(Operation::Epilogue::Arguments::second)>;
  static constexpr double kPoison = 100, kUntouched = 99;

  int m, n;
  Matrix<EMULATED_C> extra, bias;
  Matrix<Second, true> second;
  Operation::Epilogue::Arguments arguments{};
  long found = 0;

  ExtraCheck(int m_, int n_, float alpha, float beta, std::mt19937& random)
      : m(m_),
        n(n_),
        extra(m, n, 3 * ALIGNMENT_C, kPoison),
        bias(1, n, 0, kPoison),
        second(m, n, ALIGNMENT_C, kUntouched) {
    extra.fill(random);
    bias.fill(random);
    arguments.alpha = alpha;
    arguments.beta = beta;
    arguments.gamma = -1;
    arguments.delta = 2;
    arguments.epsilon = 0.5;
    arguments.extra = extra.data();
    arguments.extra_ld = extra.operand().stride[0];
    arguments.bias = bias.data();
    arguments.second = second.data();
    arguments.second_ld = second.operand().stride[0];
  }
  /// C, where beta has it read: without one nothing is.
  pycutlass_operand source(pycutlass_operand const& C) const { return arguments.beta != 0 ? C : pycutlass_operand{}; }
  /// Returns 1 where an element of D or of the second output is wrong, having told of the first.
  template <typename Element>
  long wrong(int row, int column, double sum, double source, Element const& made) {
    double const result =
        arguments.alpha * sum + arguments.beta * source - number(extra(row, column)) + 2 * number(bias(0, column));
    double const half = number(second(row, column));
    bool const right = number(made) == written<Element>(result) && half == written<Second>(0.5 * result);
    if (!right && ++found == 1) {
      std::printf("D[%d, %d] is %g, not %g; second is %g\n", row, column, number(made), result, half);
    }
    return !right;
  }
  /// Returns whether the second output was written beside its elements.
  long wrong_at_last() { return !second.has_slack(kUntouched); }
};

}  // namespace emulation
