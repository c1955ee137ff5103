// What programs share that run a kernel of PyCUTLASS on the host, behind the text of the kernel: operands, and a
// launch.
//
// Matrices hold small integers, whose products and sums are exact in every accumulator, so results are compared bit by
// bit; what lies between the lines of A and B is poison, and must stay as it is between those of D.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "synchronization.h"

namespace emulation {

/// A matrix, or several of one form: one behind the other, or where a table of addresses says.
template <typename Element_, bool kRowMajor>
class Matrix {
 public:
  using Element = Element_;

  Matrix(int rows, int columns, int slack, double filling, int count = 1, bool listed = false)
      : lines_(kRowMajor ? rows : columns),
        line_(kRowMajor ? columns : rows),
        ld_(line_ + slack),
        memory_(static_cast<size_t>(lines_) * ld_ * count + 64, Element(static_cast<float>(filling))) {
    auto* const first = reinterpret_cast<Element*>((reinterpret_cast<uintptr_t>(memory_.data()) + 31) / 32 * 32);
    // Those of a table are in another order.
    for (int i = 0; i < count; ++i) addresses_.push_back(first + (listed ? count - 1 - i : i) * lines_ * ld_);
    listed_ = listed;
  }
  Matrix(Matrix const&) = delete;
  Matrix(Matrix&&) = default;

  /// Goes over to one of several.
  void choose(int number) { chosen_ = number; }
  Element* data() { return addresses_[chosen_]; }
  Element& operator()(int row, int column) { return data()[kRowMajor ? row * ld_ + column : column * ld_ + row]; }
  pycutlass_operand operand() {
    pycutlass_operand operand{};
    operand.data = listed_ ? static_cast<void*>(addresses_.data()) : addresses_[0];
    operand.form = listed_ ? PYCUTLASS_ADDRESSES : PYCUTLASS_TENSOR;
    operand.stride[0] = ld_;
    operand.stride[1] = listed_ ? 0 : lines_ * ld_;
    return operand;
  }
  void fill(std::mt19937& random) {
    for (Element* matrix : addresses_) {
      for (int line = 0; line < lines_; ++line) {
        for (int i = 0; i < line_; ++i) matrix[line * ld_ + i] = Element(static_cast<float>(int(random() % 9) - kLess));
      }
    }
  }
  /// Elements of one of them.
  size_t size() const { return size_t(lines_) * line_; }
  /// Calls `use` with the number of each element in `bytes` from an address on, to the end of the line where lines are
  /// apart from each other.
  template <typename Use>
  void for_each_in(void const* address, int bytes, Use use) {
    intptr_t const offset = static_cast<char const*>(address) - reinterpret_cast<char const*>(data());
    if (offset < 0 || size() == 0) return;
    int64_t const at = offset / sizeof(Element), line = at / ld_, place = at % ld_, all = bytes / sizeof(Element);
    if (line >= lines_ || place >= line_) return;
    int64_t const first = line * line_ + place, left = ld_ == line_ ? size() - first : line_ - place;
    for (int64_t i = 0; i < all && i < left; ++i) use(first + i);
  }
  bool holds(double filling) {
    return std::all_of(memory_.begin(), memory_.end(), [&](Element const& each) { return number(each) == filling; });
  }
  bool has_slack(double filling) {
    filling = number(Element(static_cast<float>(filling)));
    for (Element* matrix : addresses_) {
      for (int line = 0; line < lines_; ++line) {
        for (int64_t i = line_; i < ld_; ++i) {
          if (number(matrix[line * ld_ + i]) != filling) return false;
        }
      }
    }
    return true;
  }

 private:
  static int const kLess = std::is_unsigned_v<Element> ? 0 : 4;

  int lines_, line_, chosen_ = 0;
  int64_t ld_;
  bool listed_;
  std::vector<Element> memory_;
  std::vector<Element*> addresses_;
};

/// What an epilogue makes of a result.
template <typename Element>
double written(double result) {
  if (EMULATED_RELU && result < 0) result = 0;
  if (sizeof(Element) == 1) return result < -128 ? -128 : result > 127 ? 127 : result;
  return number(Element(static_cast<float>(result)));
}

/// Runs a thread of a kernel. Kernels of stream-K are made of their parameters.
template <typename Kernel>
auto run_thread(typename Kernel::Params const& params, typename Kernel::SharedStorage& shared, int)
    -> decltype(Kernel::invoke(params, shared)) {
  Kernel::invoke(params, shared);
}
template <typename Kernel>
void run_thread(typename Kernel::Params const& params, typename Kernel::SharedStorage& shared, long) {
  Kernel()(params, shared);
}

/// Plans a call with these A, B, C and D and arguments of its epilogue, and runs all threadblocks of its grid.
template <typename Call, typename Operation = ::Operation>
void launch(Call& call, std::array<pycutlass_operand, 4> const& operands,
            typename Operation::Epilogue::Arguments epilogue, int multiprocessors = 132, bool again = true) {
  using Kernel = typename Operation::Kernel;
  call.common.struct_size = sizeof(call);
  call.common.sm_count = multiprocessors;
  call.common.sm_occupancy = 2;  // so that stream-K has threadblocks of its own to add up sums
  std::copy(operands.begin(), operands.end(), call.common.operands);
  call.common.epilogue = &epilogue;
  alignas(PYCUTLASS_PARAMS_ALIGNMENT) char storage[sizeof(typename Operation::Params)];
  pycutlass_plan_result plan{};
  if (Operation::plan(call, storage, plan) != cutlass::Status::kSuccess) fail("the problem is refused");
  std::vector<char> workspace(plan.workspace_bytes + 16);
  std::vector<char> scratch(plan.scratch_bytes + PYCUTLASS_SCRATCH_ALIGNMENT, 0x7f);  // large numbers in any type
  if (plan.workspace_bytes) {
    call.common.workspace = workspace.data();
    if constexpr (std::is_same_v<Call, pycutlass_grouped_call>) {
      call.schedule = workspace.data();
      auto const begin = reinterpret_cast<uintptr_t>(scratch.data()) + PYCUTLASS_SCRATCH_ALIGNMENT - 1;
      call.scratch = reinterpret_cast<void*>(begin / PYCUTLASS_SCRATCH_ALIGNMENT * PYCUTLASS_SCRATCH_ALIGNMENT);
    }
    if (Operation::plan(call, storage, plan) != cutlass::Status::kSuccess) fail("the workspace is refused");
    std::memset(workspace.data() + plan.clear_offset, 0, plan.clear_bytes);  // may be in the scratch memory
  }

  auto const& params = *reinterpret_cast<typename Kernel::Params*>(storage);
  std::vector<char> memory(sizeof(typename Kernel::SharedStorage) + 1024);
  char* shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024);
  // Again, with what the first launch has left in the workspace; not where it has written over what it read.
  unsigned const times = again && plan.workspace_bytes && !plan.clear_bytes ? 2 : 1;
  for (unsigned z = 0; z < times * plan.grid[2]; ++z) {
    for (unsigned y = 0; y < plan.grid[1]; ++y) {
      for (unsigned x = 0; x < plan.grid[0]; ++x) {
        std::memset(shared, 0x7f, sizeof(typename Kernel::SharedStorage));  // large numbers in any type
        run_block(
            {x, y, z % plan.grid[2]}, Kernel::kThreadCount,
            [&] { run_thread<Kernel>(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared), 0); },
            pycutlass::threads_x<Operation>(0), plan.grid);
      }
    }
  }
}

/// Arguments of a linear combination.
template <typename Epilogue = Operation::Epilogue>
typename Epilogue::Arguments linear(float alpha, float beta) {
  typename Epilogue::Arguments arguments{};
  arguments.alpha = typename Epilogue::Element(alpha);
  arguments.beta = typename Epilogue::Element(beta);
  return arguments;
}

/// Has `run` compute the problems of the command line, of `kNumbers` each; returns what the program ends with: 1 where
/// any element is wrong.
template <int kNumbers, typename Run>
int run_all(int count, char** words, Run run) {
  long wrong = 0;
  for (int i = 1; i + kNumbers <= count; i += kNumbers) {
    std::array<int, kNumbers> numbers;
    std::transform(words + i, words + i + kNumbers, numbers.begin(), [](char const* word) { return std::atoi(word); });
    long const found = run(numbers);
    for (int number : numbers) std::printf("%d ", number);
    std::printf("has %ld wrong\n", found);
    wrong += found;
  }
  return wrong != 0;
}

}  // namespace emulation
