// A tensor of torch read from its objects: c10::TensorImpl and its c10::StorageImpl. A group has hundreds of tensors to
// look at before each launch, and PyTorch's functions take five times as long. Where everything is differs between
// versions of PyTorch, so it is searched once, in tensors that are known. If it is not found, nothing is read so.
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
  static TorchImpl at(uintptr_t address) { return TorchImpl(address); }

  /// Whether this torch has everything where it was searched. Only then may anything below be asked, of tensors whose
  /// type was found to have its implementation there.
  static bool found() { return found_ == Found::kYes || (found_ == Found::kUnknown && search()); }
  /// The at::Tensor of a Python tensor: since torch 2.11 it is behind the head that all Python objects have.
  static void* handle_of(pybind11::handle tensor) { return reinterpret_cast<char*>(tensor.ptr()) + sizeof(PyObject); }

  uintptr_t address() const { return impl_; }
  uintptr_t storage() const { return word_at(impl_ + kStorage); }
  uintptr_t memory() const { return word_at(storage() + kMemory); }
  int64_t bytes() const { return static_cast<int64_t>(word_at(storage() + kBytes)); }
  uint64_t storage_flags() const { return word_at(storage() + kStorageFlags) & kFlagsMask; }
  /// Those of the flags that tell whether the memory may be written as it is: a lazy copy may share it.
  static constexpr uint64_t kWriteFlagsMask = 0xffff000000;

  static constexpr int64_t kMaxRank = 5;  // sizes and strides of more dimensions are elsewhere
  int64_t rank() const { return static_cast<int64_t>(word_at(impl_ + offset_ - kRank)); }
  int64_t const* sizes() const { return reinterpret_cast<int64_t const*>(impl_ + offset_ - kSizes); }
  int64_t const* strides() const { return reinterpret_cast<int64_t const*>(impl_ + offset_ - kStrides); }
  int64_t offset() const { return static_cast<int64_t>(word_at(impl_ + offset_)); }  // in elements
  uint64_t type_and_device() const { return word_at(impl_ + offset_ + kTypeAndDevice) & kTypeAndDeviceMask; }
  /// Tell lazily negated tensors, and those that were made in inference mode.
  uint64_t keys() const { return word_at(impl_ + offset_ + kKeys); }
  /// Whether autograd has noted anything for the tensor. If not, it does not follow what is done with it, and the
  /// tensor is no view of another one.
  bool has_autograd() const { return autograd() != 0; }
  /// Where that is. What a view belongs to is there, and lives as long.
  uintptr_t autograd() const { return word_at(impl_ + kAutograd); }

 private:
  explicit TorchImpl(uintptr_t address) : impl_(address) {}
  static uintptr_t word_at(void const* address) {
    uintptr_t word;
    std::memcpy(&word, address, sizeof word);
    return word;
  }
  static uintptr_t word_at(uintptr_t address) { return word_at(reinterpret_cast<void const*>(address)); }
  enum class Found { kUnknown, kYes, kNo };
  static bool search();
  static uintptr_t find_offset();
  static bool finds_the_rest(uintptr_t offset);

  // Behind the table of virtual functions and the counts of references: in the tensor the storage and what autograd
  // notes, in the storage the memory with what frees it and its device, its bytes and its flags.
  static constexpr uintptr_t kStorage = 16, kAutograd = 24, kMemory = 16, kBytes = 48, kStorageFlags = 56;
  // Around the storage offset: before it the number of dimensions, five sizes and five strides; behind it the number of
  // elements, the data type with the device and other things, and the dispatch keys.
  static constexpr uintptr_t kRank = 88, kSizes = 80, kStrides = 40, kTypeAndDevice = 16, kKeys = 24;
  static constexpr uint64_t kTypeAndDeviceMask = 0xffffffffff, kFlagsMask = 0xffffffffff;
  // The interpreter's lock guards them.
  inline static Found found_ = Found::kUnknown;
  inline static uintptr_t offset_ = 0;  // where the storage offset is

  uintptr_t impl_;
};

/// Bytes from the first element of a tensor to the end of the last.
inline uint64_t bytes_of_extents(int64_t rank, int64_t const* sizes, int64_t const* strides, uint64_t element_bytes) {
  int64_t last = 0;
  for (int64_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (static_cast<uint64_t>(last) + 1) * element_bytes;
}

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
    if (now.address() != impl || now.storage() != storage) return false;
    return ((now.memory() ^ memory) | static_cast<uintptr_t>((now.bytes() ^ bytes) | (now.offset() ^ offset))) == 0;
  }
};

/// What a tensor of at most TorchImpl::kMaxRank dimensions says of itself beside its place.
struct TorchForm {
  uint64_t keys, type_and_device, storage_flags;
  int64_t rank;
  std::array<int64_t, 2 * TorchImpl::kMaxRank> extents;  // sizes, and strides behind them

  static TorchForm of(TorchImpl impl) {
    TorchForm form{impl.keys(), impl.type_and_device(), impl.storage_flags(), impl.rank(), {}};
    if (form.rank <= TorchImpl::kMaxRank) form.set_extents(form.rank, impl.sizes(), impl.strides());
    return form;
  }
  void set_extents(int64_t count, int64_t const* sizes, int64_t const* strides) {
    rank = count;
    std::copy_n(strides, count, std::copy_n(sizes, count, extents.begin()));
  }
  /// Whether a tensor has that shape and those strides.
  bool has_extents_of(TorchImpl now) const {
    if (now.rank() != rank) return false;
    int64_t const *sizes = now.sizes(), *strides = now.strides();
    // Nearly all are matrices: one branch, and no call of memcmp.
    if (rank == 2) {
      return ((sizes[0] ^ extents[0]) | (sizes[1] ^ extents[1]) | (strides[0] ^ extents[2]) |
              (strides[1] ^ extents[3])) == 0;
    }
    return has_extents(sizes, strides);
  }
  /// Whether a tensor is of the same data type, device and kind: neither lazily negated nor made in inference mode if
  /// the other was not.
  bool has_kind_of(TorchImpl now) const {
    return ((now.type_and_device() ^ type_and_device) | (now.keys() ^ keys)) == 0;
  }
  /// Whether a tensor is of the same kind, in memory of the same kind. If not, a closer look is due.
  bool is_like(TorchImpl now) const {
    return now.rank() <= TorchImpl::kMaxRank && has_kind_of(now) && now.storage_flags() == storage_flags;
  }
  bool is_like(TorchForm const& other) const {
    return ((other.keys ^ keys) | (other.type_and_device ^ type_and_device) | (other.storage_flags ^ storage_flags)) ==
           0;
  }
  /// Whether a tensor's memory may be written as the other's may.
  bool is_written_like(TorchImpl now) const {
    return ((now.storage_flags() ^ storage_flags) & TorchImpl::kWriteFlagsMask) == 0;
  }

 private:
  bool has_extents(int64_t const* sizes, int64_t const* strides) const;
};

}  // namespace pycutlass
