// Runs a kernel of pycutlass/gemm_universal.h on the host, for problems named on the command line. To be included
// behind the text of a kernel, with the macros below defined.
//
// Matrices hold small integers, whose products and sums are exact in every accumulator, so results are compared bit by
// bit; what lies between the lines of A and B is poison, and must stay as it is between those of D.
#pragma once

#include <random>
#include <vector>

void __syncthreads() { emulation::wait_for_block(); }
int __syncthreads_and(int) { emulation::fail("no kernel that is emulated has a semaphore"); }
void __syncwarp(unsigned) { emulation::wait_for_warp(); }
namespace cutlass {
namespace arch {
int LaneId() { return emulation::lane(); }
int SmId() { return 0; }
}  // namespace arch
}  // namespace cutlass

namespace emulation {

template <typename Element_, bool kRowMajor>
class Matrix {
 public:
  using Element = Element_;

  Matrix(int rows, int columns, int slack, double filling)
      : lines_(kRowMajor ? rows : columns),
        line_(kRowMajor ? columns : rows),
        ld_(line_ + slack),
        memory_(static_cast<size_t>(lines_) * ld_ + 64, Element(static_cast<float>(filling))) {}

  Element* data() { return reinterpret_cast<Element*>((reinterpret_cast<uintptr_t>(memory_.data()) + 31) / 32 * 32); }
  Element& operator()(int row, int column) { return data()[kRowMajor ? row * ld_ + column : column * ld_ + row]; }
  pycutlass_operand operand() { return {data(), ld_, 0}; }
  void fill(std::mt19937& random) {
    for (int line = 0; line < lines_; ++line) {
      for (int i = 0; i < line_; ++i) data()[line * ld_ + i] = Element(static_cast<float>(int(random() % 9) - 4));
    }
  }
  bool has_slack(double filling) {
    for (int line = 0; line < lines_; ++line) {
      for (int64_t i = line_; i < ld_; ++i) {
        if (number(data()[line * ld_ + i]) != filling) return false;
      }
    }
    return true;
  }

 private:
  int lines_, line_;
  int64_t ld_;
  std::vector<Element> memory_;
};

/// What an epilogue makes of a result.
template <typename Element>
double written(double result) {
  if (EMULATED_RELU && result < 0) result = 0;
  if (sizeof(Element) == 1) return result < -128 ? -128 : result > 127 ? 127 : result;
  return number(Element(static_cast<float>(result)));
}

/// Returns how many elements of D are wrong, having told of the first.
inline long run(int m, int n, int k, float alpha, float beta, unsigned seed) {
  using Kernel = Operation::Kernel;
  std::mt19937 random(seed);
  double const poison = 100, untouched = 99;
  Matrix<EMULATED_A> A(m, k, ALIGNMENT_A, poison);
  Matrix<EMULATED_B> B(k, n, ALIGNMENT_B, poison);
  Matrix<EMULATED_C> C(m, n, ALIGNMENT_C, poison), D(m, n, 2 * ALIGNMENT_C, untouched);
  A.fill(random);
  B.fill(random);
  C.fill(random);

  pycutlass_gemm_call call{};
  call.common.struct_size = sizeof(call);
  call.common.sm_count = 132;
  call.common.sm_occupancy = 1;
  call.common.A = A.operand();
  call.common.B = B.operand();
  call.common.C = C.operand();
  call.common.D = D.operand();
  call.common.scalars.value[0] = alpha;
  call.common.scalars.value[1] = beta;
  call.m = m;
  call.n = n;
  call.k = k;
  call.batch_count = call.max_swizzle = 1;
  alignas(64) char storage[PYCUTLASS_MAX_PARAMS];
  pycutlass_plan_result plan{};
  if (Operation::plan(call, storage, plan) != cutlass::Status::kSuccess) fail("the problem is refused");

  auto const& params = *reinterpret_cast<Kernel::Params*>(storage);
  std::vector<char> memory(sizeof(Kernel::SharedStorage) + 1024);
  char* shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  for (unsigned z = 0; z < plan.grid[2]; ++z) {
    for (unsigned y = 0; y < plan.grid[1]; ++y) {
      for (unsigned x = 0; x < plan.grid[0]; ++x) {
        std::memset(shared, 0x7f, sizeof(Kernel::SharedStorage));  // large numbers in any type
        run_block({x, y, z}, Kernel::kThreadCount,
                  [&] { Kernel::invoke(params, *reinterpret_cast<Kernel::SharedStorage*>(shared)); });
      }
    }
  }

  long wrong = !D.has_slack(untouched);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += number(A(row, i)) * number(B(i, column));
      double const exact = written<decltype(D)::Element>(alpha * sum + beta * number(C(row, column)));
      double const found = number(D(row, column));
      if (found != exact && ++wrong == 1) std::printf("D[%d, %d] is %g, not %g\n", row, column, found, exact);
    }
  }
  return wrong;
}

}  // namespace emulation

int main(int count, char** words) {
  long wrong = 0;
  for (int i = 1; i + 5 < count; i += 6) {
    int numbers[6];
    for (int j = 0; j < 6; ++j) numbers[j] = std::atoi(words[i + j]);
    auto const [m, n, k, alpha, beta, seed] = numbers;
    long const found = emulation::run(m, n, k, alpha, beta, seed);
    std::printf("%dx%dx%d: %ld wrong\n", m, n, k, found);
    wrong += found;
  }
  return wrong != 0;
}
