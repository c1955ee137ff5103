// Memory of a size that is known when it is made, aligned for what CUTLASS puts there: tensor maps must begin at
// multiples of 64 bytes, and the structures around them at more.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "pycutlass/abi.h"

namespace pycutlass {

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size)
      : size_(size), data_(static_cast<unsigned char*>(::operator new(size, kAlignment))) {
    std::memset(data_.get(), 0, size);
  }
  unsigned char* data() const { return data_.get(); }
  size_t size() const { return size_; }
  /// Takes over the content of as many bytes.
  void assign(AlignedBytes const& other) noexcept { std::memcpy(data(), other.data(), size_); }

 private:
  static constexpr std::align_val_t kAlignment{PYCUTLASS_PARAMS_ALIGNMENT};
  struct Delete {
    void operator()(unsigned char* data) const { ::operator delete(data, kAlignment); }
  };

  size_t size_;
  std::unique_ptr<unsigned char, Delete> data_;
};

}  // namespace pycutlass
