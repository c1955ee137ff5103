// A torch tensor read through PyTorch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h). That takes about
// half the time of the DLPack exchange, which counts a reference and asks for the interpreter's lock to do so.
#pragma once

#include <pybind11/pybind11.h>

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
  /// Whether this torch has a tensor's offset where it was looked for.
  static bool reads_places() { return offset_ != 0; }

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

  // Behind the table of virtual functions and the counts of references: in c10::TensorImpl the storage, in
  // c10::StorageImpl the memory with what frees it and its device, and then its bytes.
  static constexpr uintptr_t kStorage = 16, kMemory = 16, kBytes = 48;
  /// Where the storage offset is in a tensor's implementation, behind what differs between versions of PyTorch; 0 where
  /// it is not found. Most tensors have the offset 0, so no tensor of the user's could tell a wrong place from it.
  static uintptr_t find_offset();
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
