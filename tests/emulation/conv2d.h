// Runs a kernel of pycutlass/conv2d.h on the host, for problems named on the command line. To be included behind the
// text of a kernel, with the macros below defined.
#pragma once

#include "launch.h"
#if EMULATED_FUNCTION
#include "function.h"
#elif EMULATED_EXTRA
#include "extra.h"
#endif

namespace emulation {

/// Calls `use` with the pixels of the output and the activation, and the place in the filter, of all products.
template <typename Use>
void for_each_product(pycutlass_conv2d_call const& p, Use use) {
  for (int image = 0; image < p.n; ++image) {
    for (int i = 0; i < p.p * p.q * p.r * p.s; ++i) {
      int const s = i % p.s, r = i / p.s % p.r, column = i / p.s / p.r % p.q, row = i / p.s / p.r / p.q;
      bool const turned = p.mode == static_cast<int>(cutlass::conv::Mode::kConvolution);
      int const y = row * p.stride_h - p.pad_h + (turned ? p.r - 1 - r : r) * p.dilation_h;
      int const x = column * p.stride_w - p.pad_w + (turned ? p.s - 1 - s : s) * p.dilation_w;
      if (y < 0 || y >= p.h || x < 0 || x >= p.w) continue;
      use((image * p.p + row) * p.q + column, (image * p.h + y) * p.w + x, r * p.s + s);
    }
  }
}

/// Returns how many elements of D are wrong, having told of the first.
inline long run(pycutlass_conv2d_call call, int alpha, int beta, unsigned seed) {
  constexpr auto kOperator = Operation::Kernel::kConvolutionalOperator;
  constexpr bool kForward = kOperator == cutlass::conv::Operator::kFprop;
  constexpr bool kOfData = kOperator == cutlass::conv::Operator::kDgrad;
  std::mt19937 random(seed);
  double const poison = 100, untouched = 99;
  int const outputs = call.n * call.p * call.q, activations = call.n * call.h * call.w, taps = call.r * call.s;
  // Filters of K x RSC are matrices of KRS x C.
  int const rows_b = kForward || kOfData ? call.k * taps : activations;
  int const rows_d = kForward ? outputs : kOfData ? activations : call.k * taps;
  int const columns_d = kForward ? call.k : call.c;
  Matrix<EMULATED_A> A(kForward ? activations : outputs, kForward ? call.c : call.k, ALIGNMENT_A, poison);
  Matrix<EMULATED_B> B(rows_b, call.c, ALIGNMENT_B, poison);
  int const slack = kForward || kOfData ? ALIGNMENT_C : 0;  // gradients of filters are in one piece
  Matrix<EMULATED_C> C(rows_d, columns_d, slack, poison), D(rows_d, columns_d, 2 * slack, untouched);
  A.fill(random);
  B.fill(random);
  C.fill(random);

#if EMULATED_FUNCTION || EMULATED_EXTRA
  // What D is to the epilogue: a filter gradient has a row for each K.
  int const m = kForward || kOfData ? rows_d : call.k, n = kForward || kOfData ? columns_d : taps * call.c;
#if EMULATED_FUNCTION
  asked.clear();
  FunctionCheck check({m, n}, random);
  check.choose(0);
  pycutlass_operand const source = Function::kReadsSource ? C.operand() : pycutlass_operand{};
#else
  ExtraCheck check(m, n, alpha, beta, random);
  pycutlass_operand const source = check.source(C.operand());
#endif
  launch(call, {A.operand(), B.operand(), source, D.operand()}, check.arguments);
#else
  launch(call, {A.operand(), B.operand(), C.operand(), D.operand()}, linear(alpha, beta));
#endif

  std::vector<double> sums(rows_d * columns_d);
  for_each_product(call, [&](int output, int activation, int tap) {
    for (int k = 0; k < call.k; ++k) {
      for (int c = 0; c < call.c; ++c) {
        int const filter = k * taps + tap;
        int const row = kForward ? output : kOfData ? activation : filter;
        double const a = number(kForward ? A(activation, c) : A(output, k));
        sums[row * columns_d + (kForward ? k : c)] += a * number(B(kForward || kOfData ? filter : activation, c));
      }
    }
  });
  long wrong = !D.has_slack(untouched);
#if EMULATED_FUNCTION
  wrong += check.not_asked() + (Function::kReadsSource ? not_asked(C) : 0) + asked_outside();
#endif
#if EMULATED_FUNCTION || EMULATED_EXTRA
  for (int i = 0; i < m * n; ++i) {
    int const row = i / columns_d, column = i % columns_d;
    wrong += check.wrong(i / n, i % n, sums[i], number(C(row, column)), D(row, column));
  }
  return wrong + check.wrong_at_last();
#else
  for (int row = 0; row < rows_d; ++row) {
    for (int column = 0; column < columns_d; ++column) {
      double const result = alpha * sums[row * columns_d + column] + beta * number(C(row, column));
      double const exact = written<decltype(D)::Element>(result), found = number(D(row, column));
      if (found != exact && ++wrong == 1) std::printf("D[%d, %d] is %g, not %g\n", row, column, found, exact);
    }
  }
  return wrong;
#endif
}

}  // namespace emulation

int main(int count, char** words) {
  return emulation::run_all<19>(count, words, [](auto const& numbers) {
    pycutlass_conv2d_call call{};
    int* const extents[] = {&call.n,        &call.h,          &call.w,          &call.c,
                            &call.k,        &call.r,          &call.s,          &call.p,
                            &call.q,        &call.pad_h,      &call.pad_w,      &call.stride_h,
                            &call.stride_w, &call.dilation_h, &call.dilation_w, &call.mode};
    for (int i = 0; i < 16; ++i) *extents[i] = numbers[i];
    call.split_k_slices = call.groups = 1;
    return emulation::run(call, numbers[16], numbers[17], numbers[18]);
  });
}
