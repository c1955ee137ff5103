// One operand's compile-time description.
#pragma once

namespace pycutlass {

template <typename Element_, typename Layout_, int Alignment_>
struct Tensor {
  using Element = Element_;
  using Layout = Layout_;
  static int const kAlignment = Alignment_;
};

}  // namespace pycutlass
