// Launches that wait for tensors: those of a plan, or of products with equal options. One is taken out, goes over to
// tensors of the forms that it had before, is launched, and comes back without them. So no tensor is kept alive, and of
// two threads, or of a launch inside of another, each has a call of its own.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "launch.h"
#include "stream.h"

namespace pycutlass {

/// One step of a hash: multiplied, so that each bit reaches those above it, and folded, so that it reaches all.
inline uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

/// Of a tensor: its kind, its extents, and what alignment depends on.
uint64_t mixed(uint64_t hash, TorchImpl tensor);

/// The tensors of one launch, in the order of a call's operands; None of those that it does not have.
struct LaunchTensors {
  static constexpr size_t kMost = 32;
  PyObject* const* items;
  size_t count;

  bool has(size_t i) const { return items[i] != Py_None; }
  uint32_t given() const;
};

/// One kernel of a launch: its call, and which of the launch's tensors are operands of it, as bits. Its other operands
/// are memory of the launch itself, such as the partial sums of split-K.
struct LaunchStep {
  Call* call;
  uint32_t taken;

  LaunchTensors operands_of(LaunchTensors const& tensors, std::array<PyObject*, LaunchTensors::kMost>& room) const;
};

class LaunchPool : public std::enable_shared_from_this<LaunchPool> {
 public:
  /// Of a plan whose epilogue has tensors of these names beside C and D. `bias` is which tensor of a launch a bias is;
  /// -1 for plans without.
  LaunchPool(pybind11::tuple const& names, int bias);
  LaunchPool() = default;

  /// How often this process has measured: launches that were chosen before that wait no longer. The interpreter's lock
  /// guards it. One for the process, since a tuner changes what all plans would choose.
  static unsigned long generation() { return generation_; }
  static void begin_generation() { ++generation_; }

  /// What tensors look like, as a number: equal for all that a launch may go over to, but not only for these. Nothing
  /// of tensors that are not read here.
  std::optional<uint64_t> key_of(LaunchTensors const& tensors) const;
  /// Has a launch with `tensors` wait for others, without them, if it can; `chosen_in` is the generation in which its
  /// kernels were chosen. One that cannot wait stays as it is. `launch` is a list of its steps, each a call with which
  /// of the tensors it takes, what keeps the device memory that it has of its own, or None, and the bytes of that.
  /// `make_result` returns a new D for such tensors, without arguments; None where the caller gives it.
  bool keep(pybind11::tuple const& launch, LaunchTensors const& tensors, unsigned long chosen_in,
            pybind11::object make_result);
  /// A new D for A, B and C of a launch that has waited; null where none is known.
  pybind11::object new_result(LaunchTensors const& without_d) const;
  /// Whether launches wait for tensors with that key.
  bool has(uint64_t key) const;
  /// Launches one that waits on the current stream of the tensors' library. False where there is none that takes them:
  /// nothing has changed then.
  bool run(uint64_t key, LaunchTensors const& tensors);
  bool run(LaunchTensors const& tensors) {
    std::optional<uint64_t> const key = key_of(tensors);
    return key && run(*key, tensors);
  }
  /// Puts A, B, C and D, tensors by name and a bias in the places that they have in a launch. Nothing where a name is
  /// missing, or something is given that launches have no place for. Those by name are `owned` then, since others may
  /// empty the dictionary meanwhile.
  std::optional<LaunchTensors> placed(std::array<PyObject*, 4> const& matrices, PyObject* by_name, PyObject* bias,
                                      std::array<PyObject*, LaunchTensors::kMost>& room,
                                      std::vector<pybind11::object>& owned) const;
  void clear();
  size_t size() const { return size_; }
  /// Programs may go through ever other shapes: when there are so many, all go.
  static constexpr size_t kMostWaiting = 256;
  /// So much device memory is kept for launches that wait, in all pools: when there is more, all of these go. A launch
  /// with more than a quarter does not wait.
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  /// So many launches with memory, for tensors that look the same, have a stream each; further ones wait for others.
  static constexpr size_t kMostStreams = 4;

  LaunchPool(LaunchPool const&) = delete;
  LaunchPool& operator=(LaunchPool const&) = delete;
  ~LaunchPool();

 private:
  inline static unsigned long generation_ = 0;

  struct Waiting {
    pybind11::object owner;  // of the calls
    std::vector<LaunchStep> steps;
    uint32_t given;              // which tensors it has
    pybind11::object memory;     // of its own; null without
    uint64_t bytes = 0;          // of that
    std::shared_ptr<Event> end;  // of the last launch, if several steps share the memory

    bool is_shared() const { return steps.size() > 1 && memory; }
    Stream stream() const { return steps.front().call->last_stream(); }
    bool update(LaunchTensors const& tensors);
    bool can_wait(LaunchTensors const& tensors) const;
    void forget_tensors() noexcept;
    uint32_t written() const;
    void run(Stream const& stream);
  };

  bool knows(PyTypeObject* type) const {
    return reinterpret_cast<PyObject*>(type) == types_[0].ptr() || reinterpret_cast<PyObject*>(type) == types_[1].ptr();
  }
  void put(uint64_t key, Waiting waiting);
  void count_bytes(int64_t more);
  static void clear_memory();

  std::vector<pybind11::object> names_;
  int bias_ = -1;
  std::unordered_map<uint64_t, std::vector<Waiting>> waiting_;
  std::unordered_map<uint64_t, pybind11::object> results_;  // what makes a new D, by the key of the other tensors
  size_t size_ = 0;
  uint64_t bytes_ = 0;  // of what waits
  // The interpreter's lock guards these: pools that have memory, and how much.
  inline static std::unordered_set<LaunchPool*> with_memory_;
  inline static uint64_t all_bytes_ = 0;
  unsigned long chosen_in_ = 0, cleared_ = 0;
  std::array<pybind11::object, 2> types_;  // torch.Tensor and Parameter, once one was seen
};

void bind_launch_pool(pybind11::module_& m);

/// plan.run(a, b, ...) on the current stream, of a plan that has launches waiting.
PyObject* serve_plan(PyObject* const* given, Py_ssize_t count, PyObject* keywords);

}  // namespace pycutlass
