// What a call of Python's has launched: for whoever wants to launch the same again without that call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace pycutlass {

class LaunchPool;
struct LaunchTensors;

/// Records launches of this thread while it is open. One may be open inside of another: both hear of all.
class Recording {
 public:
  /// A launch that waits for other tensors now. Its own are kept alive, so that no others come to lie where they are.
  struct Launch {
    std::shared_ptr<LaunchPool> pool;
    std::vector<pybind11::object> tensors;
    uint32_t written;  // which of them
  };

  /// `self` is its object in Python, which lives until it is closed.
  void begin(pybind11::object self);
  void end();
  /// Of every kernel.
  static void count_launch();
  /// Of how float32 is computed, which was asked for by `who` and may be another in the next moment.
  static void note_answer(pybind11::object const& who, pybind11::object const& answer);
  /// Of a launch of so many kernels that waits.
  static void note(std::shared_ptr<LaunchPool> pool, LaunchTensors const& tensors, uint32_t written, size_t kernels);

  /// Whether what was launched waits, all of it.
  bool is_complete() const { return launched_ == waiting_; }
  std::vector<Launch> const& launches() const { return launches_; }
  /// Pairs of who asked and what was answered.
  pybind11::list const& answers() const { return answers_; }

 private:
  static Recording*& innermost();

  Recording* outer_ = nullptr;
  pybind11::object self_;              // while it is open
  size_t launched_ = 0, waiting_ = 0;  // kernels
  std::vector<Launch> launches_;
  pybind11::list answers_;
};

void bind_recording(pybind11::module_& m);

}  // namespace pycutlass
