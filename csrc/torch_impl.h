// A tensor of torch read from its objects: c10::TensorImpl and its c10::StorageImpl. A group has hundreds of tensors to
// look at before each launch, and PyTorch's functions take five times as long. Where everything is differs between
// versions of PyTorch, so it is looked for once, in tensors that are known; where it is not found, nothing is read so.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace pycutlass {

/// The implementation of one tensor.
class TorchImpl {
 public:
  explicit TorchImpl(pybind11::handle tensor) : impl_(word_at(handle_of(tensor))) {}

  /// Whether this torch has everything where it was looked for. Only then may anything below be asked, of tensors whose
  /// type was found to have its implementation there.
  static bool found();
  /// The at::Tensor of a Python tensor: since torch 2.11 it is behind the head that all Python objects have.
  static void* handle_of(pybind11::handle tensor) { return reinterpret_cast<char*>(tensor.ptr()) + sizeof(PyObject); }

  uintptr_t address() const { return impl_; }
  uintptr_t storage() const { return word_at(impl_ + kStorage); }
  uintptr_t memory() const { return word_at(storage() + kMemory); }
  int64_t bytes() const { return static_cast<int64_t>(word_at(storage() + kBytes)); }
  uint64_t storage_flags() const { return word_at(storage() + kStorageFlags) & kFlagsMask; }

  static constexpr int64_t kMaxRank = 5;  // sizes and strides of more dimensions are elsewhere
  int64_t rank() const { return static_cast<int64_t>(word_at(impl_ + offset_ - kRank)); }
  int64_t const* sizes() const { return reinterpret_cast<int64_t const*>(impl_ + offset_ - kSizes); }
  int64_t const* strides() const { return reinterpret_cast<int64_t const*>(impl_ + offset_ - kStrides); }
  int64_t offset() const { return static_cast<int64_t>(word_at(impl_ + offset_)); }  // in elements
  uint64_t type_and_device() const { return word_at(impl_ + offset_ + kTypeAndDevice) & kTypeAndDeviceMask; }
  /// Tell lazily negated tensors, and those that were made in inference mode.
  uint64_t keys() const { return word_at(impl_ + offset_ + kKeys); }
  /// Whether autograd has noted anything for the tensor; where not, it does not follow what is done with it.
  bool has_autograd() const { return word_at(impl_ + kAutograd) != 0; }

 private:
  static uintptr_t word_at(void const* address) {
    uintptr_t word;
    std::memcpy(&word, address, sizeof word);
    return word;
  }
  static uintptr_t word_at(uintptr_t address) { return word_at(reinterpret_cast<void const*>(address)); }
  static uintptr_t find_offset();
  static bool finds_the_rest();

  // Behind the table of virtual functions and the counts of references: in the tensor the storage and what autograd
  // notes, in the storage the memory with what frees it and its device, its bytes and its flags.
  static constexpr uintptr_t kStorage = 16, kAutograd = 24, kMemory = 16, kBytes = 48, kStorageFlags = 56;
  // Around the storage offset: before it the number of dimensions, five sizes and five strides; behind it the number of
  // elements, the data type with the device and other things, and the dispatch keys.
  static constexpr uintptr_t kRank = 88, kSizes = 80, kStrides = 40, kTypeAndDevice = 16, kKeys = 24;
  static constexpr uint64_t kTypeAndDeviceMask = 0xffffffffff, kFlagsMask = 0xffffffffff;
  /// Where the storage offset is; 0 where it, or anything around it, is not found.
  inline static uintptr_t offset_ = 0;

  uintptr_t impl_;
};

/// Where a tensor's implementation, its storage and the storage's memory are, how many bytes that has, and at which of
/// its elements the tensor begins.
struct TorchPlace {
  uintptr_t impl, storage, memory;
  int64_t bytes, offset;

  static TorchPlace of(TorchImpl impl) {
    return {impl.address(), impl.storage(), impl.memory(), impl.bytes(), impl.offset()};
  }
  /// Whether that is the tensor's place. The chain of addresses is compared from its beginning: none is followed that
  /// the tensor has not told itself.
  bool is_of(TorchImpl now) const {
    return now.address() == impl && now.storage() == storage && now.memory() == memory && now.bytes() == bytes &&
           now.offset() == offset;
  }
};

/// What a tensor of at most TorchImpl::kMaxRank dimensions says of itself beside its place.
struct TorchForm {
  int64_t rank;
  uint64_t type_and_device;
  std::array<int64_t, 2 * TorchImpl::kMaxRank> extents;  // sizes, and strides behind them
  uint64_t keys, storage_flags;

  static TorchForm of(TorchImpl impl) {
    TorchForm form{impl.rank(), impl.type_and_device(), {}, impl.keys(), impl.storage_flags()};
    if (form.rank <= TorchImpl::kMaxRank) {
      auto const strides = std::copy_n(impl.sizes(), form.rank, form.extents.begin());
      std::copy_n(impl.strides(), form.rank, strides);
    }
    return form;
  }
  /// Whether a tensor has that shape and those strides, and the data type.
  bool has_extents_of(TorchImpl now) const {
    auto const sizes = extents.begin(), strides = sizes + rank;
    return now.rank() == rank && std::equal(sizes, strides, now.sizes()) &&
           std::equal(strides, strides + rank, now.strides()) && now.type_and_device() == type_and_device;
  }
  /// Whether a tensor is of the same data type, device and kind: neither lazily negated nor to be copied by the first
  /// write, nor made in inference mode where the other was not. Where this says no, a closer look is due.
  bool is_like(TorchImpl now) const {
    return now.rank() <= TorchImpl::kMaxRank && now.type_and_device() == type_and_device && now.keys() == keys &&
           now.storage_flags() == storage_flags;
  }
};

}  // namespace pycutlass
