// A torch tensor read through PyTorch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h). That takes about
// half the time of the DLPack exchange, which counts a reference and asks for the interpreter's lock to do so.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace pycutlass {

/// PyTorch's functions that read a tensor.
class TorchReader {
 public:
  /// Sizes and strides lie in the tensor.
  struct View {
    void* data;
    int64_t rank;
    int64_t* sizes;
    int64_t* strides;
    int32_t dtype, device_type, device_index;
  };

  /// The reader for tensors of the type of `tensor`; null where PyTorch has no such functions, or where such objects
  /// are not built as expected.
  static TorchReader const* for_type_of(pybind11::handle tensor);
  /// Whether `tensor` could be read.
  bool read(pybind11::handle tensor, View& view) const;

  /// Where a tensor's implementation, its storage and the storage's memory are, how many bytes that has, and at which
  /// of its elements the tensor begins.
  struct Place {
    uintptr_t impl, storage, memory;
    int64_t bytes, offset;
  };
  /// What `tensor` says of its place when it is asked through Python.
  static Place ask_place(pybind11::handle tensor);
  /// The place of `tensor`, read from its objects: a group has hundreds of tensors to look at before each launch, and
  /// functions take twice as long. Only where `reads_places`, and where a tensor of its type was found to have what
  /// `ask_place` says right there.
  static Place read_place(pybind11::handle tensor) {
    uintptr_t const impl = word_at(handle_of(tensor)), storage = word_at(impl + kStorage);
    return {impl, storage, word_at(storage + kMemory), static_cast<int64_t>(word_at(storage + kBytes)),
            static_cast<int64_t>(word_at(impl + offset_))};
  }
  /// Whether `tensor` still has that place.
  static bool has_place(pybind11::handle tensor, Place const& place) {
    return word_at(handle_of(tensor)) == place.impl && word_at(place.impl + kStorage) == place.storage &&
           word_at(place.storage + kMemory) == place.memory &&
           static_cast<int64_t>(word_at(place.storage + kBytes)) == place.bytes &&
           static_cast<int64_t>(word_at(place.impl + offset_)) == place.offset;
  }

  /// What a tensor says of itself beside its address. Those with more dimensions than `kMaxRank` are not read so.
  struct Form {
    uint64_t storage_flags, type_and_device, keys;
    int64_t rank;
    std::array<int64_t, 5> sizes, strides;
  };
  static constexpr int64_t kMaxRank = 5;
  static Form read_form(pybind11::handle tensor) {
    uintptr_t const impl = word_at(handle_of(tensor));
    Form form{word_at(word_at(impl + kStorage) + kStorageFlags) & kFlagsMask,
              word_at(impl + offset_ + kTypeAndDevice) & kTypeAndDeviceMask,
              word_at(impl + offset_ + kKeys),
              static_cast<int64_t>(word_at(impl + offset_ - kRank)),
              {},
              {}};
    if (form.rank <= kMaxRank) {
      std::copy_n(sizes_of(impl), form.rank, form.sizes.begin());
      std::copy_n(strides_of(impl), form.rank, form.strides.begin());
    }
    return form;
  }
  /// Whether `tensor` has the shape, the strides and the data type of `form`.
  static bool has_extents(pybind11::handle tensor, Form const& form) {
    uintptr_t const impl = word_at(handle_of(tensor));
    return static_cast<int64_t>(word_at(impl + offset_ - kRank)) == form.rank &&
           std::equal(form.sizes.begin(), form.sizes.begin() + form.rank, sizes_of(impl)) &&
           std::equal(form.strides.begin(), form.strides.begin() + form.rank, strides_of(impl)) &&
           (word_at(impl + offset_ + kTypeAndDevice) & kTypeAndDeviceMask) == form.type_and_device;
  }
  /// Whether `tensor` is of the same data type, device and kind as that of `form`: neither lazily negated, nor copied
  /// on the first write, nor made in inference mode where the other was not. Where this says no, the functions below
  /// have a closer look.
  static bool is_alike(pybind11::handle tensor, Form const& form) {
    uintptr_t const impl = word_at(handle_of(tensor));
    return (word_at(impl + offset_ + kTypeAndDevice) & kTypeAndDeviceMask) == form.type_and_device &&
           word_at(impl + offset_ + kKeys) == form.keys &&
           (word_at(word_at(impl + kStorage) + kStorageFlags) & kFlagsMask) == form.storage_flags;
  }
  /// The extents and the address of a tensor that `is_alike`, with elements of so many bytes.
  static View view_alike(pybind11::handle tensor, uint64_t element_bytes) {
    uintptr_t const impl = word_at(handle_of(tensor));
    uintptr_t const memory = word_at(word_at(impl + kStorage) + kMemory);
    auto* const sizes = const_cast<int64_t*>(sizes_of(impl));
    View view{nullptr, static_cast<int64_t>(word_at(impl + offset_ - kRank)),
              sizes,   const_cast<int64_t*>(strides_of(impl)),
              0,       0,
              0};
    if (std::find(sizes, sizes + view.rank, 0) == sizes + view.rank) {
      view.data = reinterpret_cast<void*>(memory + word_at(impl + offset_) * element_bytes);
    }
    return view;
  }
  /// Whether places and forms of tensors are where this torch was looked at for them.
  static bool reads_places() { return offset_ != 0; }
  /// Whether autograd may follow what is done with the tensor; it does not where nothing was ever noted for it.
  static bool has_autograd(pybind11::handle tensor) { return word_at(word_at(handle_of(tensor)) + kAutograd) != 0; }

  /// Whether autograd follows what is done with the tensor.
  bool requires_grad(pybind11::handle tensor) const;
  /// Whether the tensor was made in inference mode, and so has no version.
  bool is_inference(pybind11::handle tensor) const;
  /// Tells autograd that the tensor's memory was written to.
  void increment_version(pybind11::handle tensor) const;

 private:
  // To these functions a tensor is a pointer to an at::Tensor, and that is a pointer to the implementation.
  using Handle = void*;
  template <typename T>
  using Getter = int32_t (*)(Handle, T*);

  TorchReader();
  /// Since torch 2.11 a Python tensor has its at::Tensor behind the head that all Python objects have.
  static Handle handle_of(pybind11::handle tensor) { return reinterpret_cast<char*>(tensor.ptr()) + sizeof(PyObject); }
  static uintptr_t word_at(void const* address) {
    uintptr_t word;
    std::memcpy(&word, address, sizeof word);
    return word;
  }
  static uintptr_t word_at(uintptr_t address) { return word_at(reinterpret_cast<void const*>(address)); }

  // Behind the table of virtual functions and the counts of references: in c10::TensorImpl the storage and what
  // autograd notes, in c10::StorageImpl the memory with what frees it and its device, its bytes and its flags.
  static constexpr uintptr_t kStorage = 16, kAutograd = 24, kMemory = 16, kBytes = 48, kStorageFlags = 56;
  // Around the storage offset: before it the number of dimensions, five sizes and five strides; behind it the number of
  // elements, the data type with the device and other things, and the dispatch keys.
  static constexpr uintptr_t kRank = 88, kSizes = 80, kStrides = 40, kTypeAndDevice = 16, kKeys = 24;
  static constexpr uint64_t kTypeAndDeviceMask = 0xffffffffff, kFlagsMask = 0xffffffffff;
  static int64_t const* sizes_of(uintptr_t impl) { return reinterpret_cast<int64_t const*>(impl + offset_ - kSizes); }
  static int64_t const* strides_of(uintptr_t impl) {
    return reinterpret_cast<int64_t const*>(impl + offset_ - kStrides);
  }
  /// Where the storage offset is in a tensor's implementation, behind what differs between versions of PyTorch; 0 where
  /// it, or anything that is read around it, is not found. Most tensors have the offset 0, so no tensor of the user's
  /// could tell a wrong place from it.
  static uintptr_t find_offset();
  static bool finds_the_rest();
  inline static uintptr_t offset_ = 0;  // of the one reader, here for the functions above

  bool complete_ = false;
  Getter<void*> data_ = nullptr;
  Getter<int64_t> rank_ = nullptr;
  Getter<int64_t*> sizes_ = nullptr, strides_ = nullptr;
  Getter<int32_t> dtype_ = nullptr, device_type_ = nullptr, device_index_ = nullptr;
  // Functions of C++ that take one reference to an object; null where this torch has none of that name.
  bool (*requires_grad_)(void const* impl) = nullptr;
  bool (*is_inference_)(void const* tensor) = nullptr;
  void (*bump_version_)(void const* tensor) = nullptr;
};

}  // namespace pycutlass
