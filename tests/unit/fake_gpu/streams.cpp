// Streams, events and graphs of the stand-in.
#include "driver.h"

#include <utility>

namespace fake {
namespace {

void step(CUstream_st* stream) {
  std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  work();
}

void reach(Point const& point) {
  while (!point.reached && !point.stream->work.empty()) step(point.stream);
}

}  // namespace

thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool breaks_a_capture() {
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool any = false;
  for (CUstream_st* stream : state().streams) {
    if (stream->capturing) any = stream->broken = true;
  }
  return any;
}

CUstream_st* resolve(CUstream handle, CUresult& code) {
  code = CUDA_ERROR_INVALID_CONTEXT;
  if (!current) return nullptr;
  code = CUDA_SUCCESS;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return &current->legacy;
  if (handle == CU_STREAM_PER_THREAD) return &current->per_thread;
  code = CUDA_ERROR_INVALID_HANDLE;
  if (!state().streams.count(handle)) {
    violation("a stream that is gone");
    return nullptr;
  }
  if (handle->context != current) return nullptr;
  code = CUDA_SUCCESS;
  return handle;
}

void push(CUstream_st* stream, std::function<void()> work) {
  int const ordinal = stream->context->ordinal;
  auto on_device = [work = std::move(work), ordinal] {
    int const before = state().running_on;
    state().running_on = ordinal;
    work();
    state().running_on = before;
  };
  if (stream->capturing) {
    stream->captured.push_back(on_device);
  } else {
    stream->work.push_back(on_device);
  }
}

void drain(CUstream_st* stream) {
  while (!stream->work.empty()) step(stream);
}

void run_all() {
  for (CUctx_st& context : state().contexts) {
    drain(&context.legacy);
    drain(&context.per_thread);
  }
  for (CUstream_st* stream : state().streams) drain(stream);
}

}  // namespace fake

using namespace fake;

extern "C" {

CUresult cuStreamSynchronize(CUstream handle) {
  ENTER(cuStreamSynchronize);
  STREAM(handle);
  if (stream->capturing) {
    stream->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  drain(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  ENTER(cuStreamGetCtx);
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    *context = current;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!state().streams.count(handle)) return CUDA_ERROR_INVALID_HANDLE;
  *context = handle->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ENTER(cuStreamIsCapturing);
  STREAM(handle);
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*exchanged, mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* handle, unsigned) {
  ENTER(cuStreamCreate);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *handle = new CUstream_st{current, {}, false, false, {}};
  state().streams.insert(*handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  ENTER(cuStreamDestroy);
  drain(handle);
  state().streams.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  ENTER(cuStreamWaitEvent);
  STREAM(handle);
  if (event->captured != stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  std::shared_ptr<Point> const point = event->point;
  if (point) push(stream, [point] { reach(*point); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  ENTER(cuEventCreate);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  *event = new CUevent_st{current, nullptr, false, !(flags & CU_EVENT_DISABLE_TIMING)};
  ++state().events;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  ENTER(cuEventRecord);
  STREAM(handle);
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  auto const point = std::make_shared<Point>(Point{stream});
  event->captured = stream->capturing;
  event->point = point;
  push(stream, [point] {
    point->reached = true;
    point->at = state().clock;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  ENTER(cuEventQuery);
  if (current != event->context) return CUDA_ERROR_INVALID_CONTEXT;
  REFUSED_UNDER_CAPTURE();
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  return event->point && !event->point->reached ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  ENTER(cuEventSynchronize);
  if (current != event->context) return CUDA_ERROR_INVALID_CONTEXT;
  REFUSED_UNDER_CAPTURE();
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (event->point) reach(*event->point);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent last) {
  ENTER(cuEventElapsedTime);
  if (!first->timed || !last->timed || !first->point || !last->point) return CUDA_ERROR_INVALID_HANDLE;
  if (first->context != last->context || current != last->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->point->reached || !last->point->reached) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(last->point->at - first->point->at);
  return CUDA_SUCCESS;
}

/// Time passes for what is on a stream while the host lets it wait.
CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ENTER(cuLaunchHostFunc);
  STREAM(handle);
  push(stream, [=] {
    function(data);
    state().clock += 1;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  ENTER(cuEventDestroy);
  --state().events;
  delete event;
  return CUDA_SUCCESS;
}

void fake_begin_capture(CUstream_st* stream) {
  Guard guard(state().lock);
  stream->capturing = true;
  stream->broken = false;
  stream->captured.clear();
}

/// The number of the graph, or -1 where the capture was broken.
int fake_end_capture(CUstream_st* stream) {
  Guard guard(state().lock);
  stream->capturing = false;
  if (stream->broken) return -1;
  state().graphs.push_back(stream->captured);
  return static_cast<int>(state().graphs.size()) - 1;
}

void fake_replay(int graph, CUstream_st* stream) {
  Guard guard(state().lock);
  for (auto const& work : state().graphs.at(static_cast<size_t>(graph))) push(stream, work);
}

/// Runs everything that is on any stream.
void fake_run() {
  Guard guard(state().lock);
  run_all();
}

/// Runs all work, of each stream a piece at a time: what has to be behind the work of another stream must wait for it.
void fake_run_in_turns() {
  Guard guard(state().lock);
  for (bool any = true; any;) {
    any = false;
    for (CUstream_st* stream : state().streams) {
      if (stream->work.empty()) continue;
      step(stream);
      any = true;
    }
  }
  run_all();
}

int fake_events() { return state().events; }

}  // extern "C"
