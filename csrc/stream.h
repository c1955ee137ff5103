// A stream together with its device. A handle alone does not say which stream it is: 0, 1 and 2 are default streams of
// whatever context is current. So all that the driver is asked about a stream, but for the launch itself, is asked
// here, where the stream's context is current for just as long.
#pragma once

#include <cuda.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>

namespace pycutlass {

class Stream;

/// A point on a stream.
class Event {
 public:
  /// For streams of `context`. One that is `timed` takes the driver longer.
  explicit Event(CUcontext context, bool timed = false);
  ~Event();
  Event(Event const&) = delete;
  Event& operator=(Event const&) = delete;
  /// Whether everything before it has run. May be asked while streams are captured.
  bool done() const;
  /// Waits until everything before it has run.
  void synchronize() const;
  /// Milliseconds from `first` to this one, both timed and done.
  float since(Event const& first) const;
  CUevent handle() const { return event_; }

 private:
  CUcontext context_;
  CUevent event_ = nullptr;
};

class Stream {
 public:
  Stream() = default;
  Stream(CUcontext context, CUstream handle) : context_(context), handle_(handle) {}

  CUcontext context() const { return context_; }
  CUstream handle() const { return handle_; }
  int ordinal() const;
  bool operator==(Stream const& other) const { return context_ == other.context_ && handle_ == other.handle_; }
  bool operator!=(Stream const& other) const { return !(*this == other); }

  bool is_capturing() const;
  void synchronize() const;
  /// Copies host memory to the device. Page-locked memory is read later, any other before this returns.
  void copy_in(CUdeviceptr target, void const* source, size_t bytes) const;
  void copy(CUdeviceptr target, CUdeviceptr source, size_t bytes) const;
  void copy_out(void* target, CUdeviceptr source, size_t bytes) const;
  void fill(CUdeviceptr target, unsigned char value, size_t bytes) const;
  void record(Event const& event) const;
  /// A timed event at what is on the stream now.
  std::shared_ptr<Event> mark() const;
  void wait_for(Event const& event) const;
  /// Waits for what is on `first` now.
  void follow(Stream const& first) const;

 private:
  CUcontext context_ = nullptr;
  CUstream handle_ = nullptr;
};

/// Whether what is done on a stream of the current context is captured into a graph, not run.
bool is_capturing(CUstream handle);

/// The handle of a stream given as an integer or as an object of torch, cupy, cuda.core or whoever has a stream.
CUstream stream_handle(pybind11::handle stream);

/// That stream, for a launch on GPU `ordinal`, whose primary context is `context`. Throws ArgumentError where it is a
/// stream of another GPU.
Stream named_stream(pybind11::handle stream, CUcontext context, int ordinal);

/// Adds the classes, and the functions that work on a stream, to the module.
void bind_stream(pybind11::module_& m);

}  // namespace pycutlass
