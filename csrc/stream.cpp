#include "stream.h"

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "driver.h"
#include "integers.h"

namespace py = pybind11;

namespace pycutlass {
namespace {

bool is_default(CUstream handle) {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

/// Whether the driver knows host memory: it is page-locked then.
bool is_known(void const* memory) {
  unsigned kind = 0;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* answer = &kind;
  auto address = reinterpret_cast<CUdeviceptr>(memory);
  check(driver().cuPointerGetAttributes(1, &asked, &answer, address), "cuPointerGetAttributes");
  return kind != 0;
}

constexpr char kRemedy[] =
    ". Pass None for the current stream, or a stream such as torch.cuda.current_stream() or "
    "cupy.cuda.get_current_stream().";

/// An attribute of what may be anything; null where it has none.
py::object attribute_of(py::handle object, PyObject* name) {
  // Python's getattr with a default makes no exception for an attribute that is absent, and hides no other.
  static PyObject* const get = py::getattr(py::module_::import("builtins"), "getattr").release().ptr();
  static PyObject* const absent = py::module_::import("builtins").attr("object")().release().ptr();
  std::array<PyObject*, 3> const given = {object.ptr(), name, absent};
  auto found = py::reinterpret_steal<py::object>(PyObject_Vectorcall(get, given.data(), given.size(), nullptr));
  if (!found) raise_asked(object, py::str(name), kRemedy);
  return found.ptr() == absent ? py::object() : found;
}

bool has_length(py::handle object) {
  PyTypeObject const* type = Py_TYPE(object.ptr());
  return (type->tp_as_sequence && type->tp_as_sequence->sq_length) ||
         (type->tp_as_mapping && type->tp_as_mapping->mp_length);
}

/// An integer of any library from 0 to `most`. Arrays of one element would be integers as well: they have a length.
std::optional<size_t> natural(py::handle value, size_t most) {
  AnyInt number;
  if (PyLong_CheckExact(value.ptr())) {
    number.object = py::reinterpret_borrow<py::object>(value);
  } else if (has_length(value) || !read_integer(value, number)) {
    return std::nullopt;
  }
  size_t const found = PyLong_AsSize_t(number.object.ptr());
  if (found == std::numeric_limits<size_t>::max() && PyErr_Occurred()) PyErr_Clear();  // beyond `most` in any case
  return found <= most ? std::optional(found) : std::nullopt;
}

/// Whether it is what cuda.bindings calls a stream. Its first versions are integers for int() alone.
bool is_handle_object(py::handle value) {
  std::string const name = type_name(value);
  return (name == "CUstream" || name == "cudaStream_t") && PyNumber_Check(value.ptr());
}

/// The number in what may be an integer, a handle of cuda.bindings, or ctypes.c_void_p, which numba has.
py::object number_of(py::handle value) {
  if (PyLong_CheckExact(value.ptr())) return py::reinterpret_borrow<py::object>(value);
  if (is_handle_object(value)) {
    auto number = py::reinterpret_steal<py::object>(PyNumber_Long(value.ptr()));
    if (!number) raise_asked(value, "handle", kRemedy);
    return number;
  }
  if (type_name(value) == "c_void_p") {
    static PyObject* const held = PyUnicode_InternFromString("value");
    py::object const address = attribute_of(value, held);  // None is the null pointer
    return address && address.is_none() ? py::int_(0) : address;
  }
  return py::reinterpret_borrow<py::object>(value);
}

/// Whether the driver may be asked about it: whoever asks about another number ends the process.
bool may_be_handle(size_t number) {
  constexpr size_t kFirstAddress = 4096, kLastAddress = (size_t{1} << 56) - 1;  // the first page is never mapped
  return is_default(reinterpret_cast<CUstream>(number)) || (number >= kFirstAddress && number <= kLastAddress);
}

/// The handle that a number means. `from` says where the number comes from.
CUstream checked_handle(py::handle value, char const* from) {
  py::object const number = number_of(value);
  if (number) {
    std::optional<size_t> const handle = natural(number, std::numeric_limits<size_t>::max() - 1);
    if (handle && may_be_handle(*handle)) return reinterpret_cast<CUstream>(*handle);
  }
  raise_error("ArgumentTypeError", std::string(from) + " is " + shown(value) +
                                       ", which is no handle of a stream (an address, or 0, 1 or 2)" + kRemedy);
}

/// The handle in what `__cuda_stream__` returns: a version, which is 0, and the handle. In first versions of the
/// protocol it is a property.
CUstream handle_of_protocol(py::handle stream, py::object const& member) {
  py::object answer = member;
  if (PyCallable_Check(member.ptr())) {
    answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(member.ptr()));
    if (!answer) raise_asked(stream, "__cuda_stream__()", kRemedy);
  }
  bool const is_sequence = PyTuple_Check(answer.ptr()) || PyList_Check(answer.ptr());
  if (!is_sequence || PySequence_Fast_GET_SIZE(answer.ptr()) != 2 ||
      natural(PySequence_Fast_GET_ITEM(answer.ptr(), 0), 0) != 0) {
    raise_error("ArgumentTypeError", "stream.__cuda_stream__ gives " + shown(answer) +
                                         ", where version 0 of that protocol has 0 and the handle" + kRemedy);
  }
  return checked_handle(PySequence_Fast_GET_ITEM(answer.ptr(), 1), "stream.__cuda_stream__()[1]");
}

/// The GPU that a stream says it is on, which torch's do; -1 where it does not.
int device_said(py::handle stream) {
  static PyObject* const handle = PyUnicode_InternFromString("cuda_stream");
  static PyObject* const device = PyUnicode_InternFromString("device_index");
  if (PyLong_CheckExact(stream.ptr()) || !attribute_of(stream, handle)) return -1;
  py::object const said = attribute_of(stream, device);
  if (!said) return -1;
  if (auto const ordinal = natural(said, std::numeric_limits<int>::max())) return static_cast<int>(*ordinal);
  raise_error("ArgumentTypeError", "stream.device_index is " + shown(said) +
                                       ", which is no number of a GPU: that is an integer of at least 0" + kRemedy);
}

/// The GPU that a stream belongs to, as far as anybody says so; -1 where nobody does.
int device_of(py::handle stream, CUstream handle, CUcontext context, int ordinal) {
  if (is_default(handle)) return device_said(stream);  // the driver would say that it is the current one
  CUcontext owner = nullptr;
  if (driver().cuStreamGetCtx(handle, &owner) != CUDA_SUCCESS) return -1;  // the launch will say what is wrong with it
  if (owner == context) return ordinal;
  ContextScope scope(owner);
  CUdevice device = 0;
  return driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

}  // namespace

Event::Event(CUcontext context, bool timed) : context_(context) {
  ContextScope scope(context);
  check(driver().cuEventCreate(&event_, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

Event::~Event() {
  ContextScope scope(context_, std::nothrow);
  driver().cuEventDestroy(event_);
}

bool Event::done() const {
  ContextScope scope(context_, std::nothrow);  // where the driver has ended, so has all that it did
  RelaxedCapture relaxed;
  CUresult const code = driver().cuEventQuery(event_);
  return code != CUDA_ERROR_NOT_READY && code != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void Event::synchronize() const {
  ContextScope scope(context_);
  check(unlocked([this] { return driver().cuEventSynchronize(event_); }), "cuEventSynchronize");
}

float Event::since(Event const& first) const {
  ContextScope scope(context_);
  float milliseconds = 0;
  check(driver().cuEventElapsedTime(&milliseconds, first.event_, event_), "cuEventElapsedTime");
  return milliseconds;
}

int Stream::ordinal() const {
  ContextScope scope(context_);
  CUdevice device = 0;
  check(driver().cuCtxGetDevice(&device), "cuCtxGetDevice");
  return device;
}

bool Stream::is_capturing() const {
  ContextScope scope(context_);
  return pycutlass::is_capturing(handle_);
}

void Stream::synchronize() const {
  ContextScope scope(context_);
  check(unlocked([this] { return driver().cuStreamSynchronize(handle_); }), "cuStreamSynchronize");
}

void Stream::copy_in(CUdeviceptr target, void const* source, size_t bytes) const {
  ContextScope scope(context_);
  check(unlocked([=] { return driver().cuMemcpyHtoDAsync(target, source, bytes, handle_); }), "cuMemcpyHtoDAsync");
}

void Stream::copy_out(void* target, CUdeviceptr source, size_t bytes) const {
  ContextScope scope(context_);
  check(unlocked([=] { return driver().cuMemcpyDtoHAsync(target, source, bytes, handle_); }), "cuMemcpyDtoHAsync");
}

void Stream::copy(CUdeviceptr target, CUdeviceptr source, size_t bytes) const {
  ContextScope scope(context_);
  check(unlocked([=] { return driver().cuMemcpyDtoDAsync(target, source, bytes, handle_); }), "cuMemcpyDtoDAsync");
}

void Stream::fill(CUdeviceptr target, unsigned char value, size_t bytes) const {
  ContextScope scope(context_);
  check(unlocked([=] { return driver().cuMemsetD8Async(target, value, bytes, handle_); }), "cuMemsetD8Async");
}

void Stream::record(Event const& event) const {
  ContextScope scope(context_);
  check(unlocked([&] { return driver().cuEventRecord(event.handle(), handle_); }), "cuEventRecord");
}

std::shared_ptr<Event> Stream::mark() const {
  auto event = std::make_shared<Event>(context_, /*timed=*/true);
  record(*event);
  return event;
}

void Stream::wait_for(Event const& event) const {
  ContextScope scope(context_);
  check(unlocked([&] { return driver().cuStreamWaitEvent(handle_, event.handle(), 0); }), "cuStreamWaitEvent");
}

void Stream::follow(Stream const& first) const {
  Event event(first.context());  // the driver keeps it until the wait has been served
  first.record(event);
  wait_for(event);
}

bool is_capturing(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return false;  // these cannot be captured
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver().cuStreamIsCapturing(handle, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUstream stream_handle(py::handle stream) {
  if (PyType_Check(stream.ptr())) {
    raise_error("ArgumentTypeError", "stream is " + shown(stream) + ", which is a class and no stream" + kRemedy);
  }
  if (PyLong_Check(stream.ptr()) && !PyBool_Check(stream.ptr())) return checked_handle(stream, "stream");
  static PyObject* const protocol = PyUnicode_InternFromString("__cuda_stream__");
  if (py::object const method = attribute_of(stream, protocol)) return handle_of_protocol(stream, method);
  static std::array const attributes = {
      std::pair(PyUnicode_InternFromString("cuda_stream"), "stream.cuda_stream"),
      std::pair(PyUnicode_InternFromString("ptr"), "stream.ptr"),
      std::pair(PyUnicode_InternFromString("handle"), "stream.handle"),
  };
  for (auto const& [name, from] : attributes) {
    if (py::object const value = attribute_of(stream, name)) return checked_handle(value, from);
  }
  if (is_handle_object(stream) || (PyIndex_Check(stream.ptr()) && !has_length(stream))) {
    return checked_handle(stream, "stream");
  }
  raise_error("ArgumentTypeError",
              "stream must be an integer handle or have __cuda_stream__, got " + shown(stream) + kRemedy);
}

Stream named_stream(py::handle stream, CUcontext context, int ordinal) {
  CUstream const handle = stream_handle(stream);
  int const device = device_of(stream, handle, context, ordinal);
  if (device >= 0 && device != ordinal) {
    raise_error("ArgumentError",
                "the stream belongs to GPU " + std::to_string(device) + ", the operands are on GPU " +
                    std::to_string(ordinal) +
                    ": a launch goes to a stream of its own GPU. Pass None for the current one there, or "
                    "torch.cuda.current_stream(" +
                    std::to_string(ordinal) + ").");
  }
  return {context, handle};
}

void bind_stream(py::module_& m) {
  py::class_<Event, std::shared_ptr<Event>>(m, "Event", "A point on a stream.")
      .def_property_readonly("done", &Event::done, "Whether everything before it has run.")
      .def("synchronize", &Event::synchronize, "Wait until everything before it has run.")
      .def("since", &Event::since, py::arg("first"),
           "Milliseconds from a mark to this one, once both have been reached.");
  py::class_<Stream>(m, "Stream", "A stream of one GPU.")
      .def(py::init([](int ordinal, uintptr_t handle) {
             return Stream(primary_context(ordinal), reinterpret_cast<CUstream>(handle));
           }),
           py::arg("ordinal"), py::arg("handle") = 0)
      .def_property_readonly("ordinal", &Stream::ordinal)
      .def_property_readonly("handle", [](Stream const& self) { return reinterpret_cast<uintptr_t>(self.handle()); })
      .def(
          "__eq__",
          [](Stream const& self, py::handle other) {
            return py::isinstance<Stream>(other) && self == other.cast<Stream const&>();
          },
          py::arg("other"))
      .def("__hash__", [](Stream const& self) { return std::hash<void const*>()(self.handle()); })
      .def("is_capturing", &Stream::is_capturing, "Whether it is being captured into a graph.")
      .def("synchronize", &Stream::synchronize, "Wait for everything on it.")
      .def("mark", &Stream::mark, "Return a point in time: when everything on it now has run.")
      .def("follow", &Stream::follow, py::arg("first"), "Make it wait for what is on stream `first` now.");
  m.def(
      "relax_capture",
      [] {
        if (!driver_problem().empty()) return;
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        driver().cuThreadExchangeStreamCaptureMode(&mode);
      },
      "From now on, what the calling thread does breaks no capture of other threads.");
  m.def(
      "stream_handle", [](py::handle stream) { return reinterpret_cast<uintptr_t>(stream_handle(stream)); },
      py::arg("stream"), "Integer handle of a stream object.");
  m.def(
      "named_stream",
      [](py::handle stream, int ordinal) { return named_stream(stream, primary_context(ordinal), ordinal); },
      py::arg("stream"), py::arg("ordinal"), "The stream that a handle or an object means on a GPU.");
  m.def(
      "copy_to_device",
      [](uintptr_t target, py::buffer const& source, Stream const& stream) {
        py::buffer_info info = source.request();
        ContextScope scope(stream.context());
        // From page-locked memory, which the driver knows, it reads on after the copy has been queued.
        bool const waits = is_known(info.ptr) && !stream.is_capturing();
        stream.copy_in(static_cast<CUdeviceptr>(target), info.ptr, static_cast<size_t>(info.size * info.itemsize));
        if (waits) stream.synchronize();
      },
      py::arg("target"), py::arg("source"), py::arg("stream"),
      "Copy a contiguous host buffer to device memory; it may change when this returns, but under capture.");
  m.def(
      "copy_on_device",
      [](uintptr_t target, uintptr_t source, size_t bytes, Stream const& stream) {
        stream.copy(static_cast<CUdeviceptr>(target), static_cast<CUdeviceptr>(source), bytes);
      },
      py::arg("target"), py::arg("source"), py::arg("bytes"), py::arg("stream"),
      "Copy device memory to device memory of the same GPU.");
  m.def(
      "copy_to_host",
      [](py::buffer const& target, uintptr_t source, Stream const& stream) {
        py::buffer_info info = target.request(/*writable=*/true);
        stream.copy_out(info.ptr, static_cast<CUdeviceptr>(source), static_cast<size_t>(info.size * info.itemsize));
      },
      py::arg("target"), py::arg("source"), py::arg("stream"), "Copy device memory to a contiguous host buffer.");
  m.def(
      "fill",
      [](uintptr_t target, int value, size_t bytes, Stream const& stream) {
        stream.fill(static_cast<CUdeviceptr>(target), static_cast<unsigned char>(value), bytes);
      },
      py::arg("target"), py::arg("value"), py::arg("bytes"), py::arg("stream"), "Set bytes of device memory.");
}

}  // namespace pycutlass
