#include "staging.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace py = pybind11;

namespace pycutlass {
namespace {

/// What the driver takes from pageable memory at once, within the call; of more it may wait for the stream.
constexpr size_t kTakenAtOnce = 64 << 10;

/// Half of what an outbox has.
constexpr size_t kOutboxBlock = 64 << 10;

/// Blocks that nobody holds, of the whole process. Never destroyed: when the process ends the driver may be gone first.
/// The interpreter's lock guards it.
std::vector<PinnedBlock*>& spare_blocks() {
  static auto* blocks = new std::vector<PinnedBlock*>;
  return *blocks;
}

Pinned take_block(size_t bytes) {
  std::vector<PinnedBlock*>& spare = spare_blocks();
  auto found = std::find_if(spare.begin(), spare.end(), [bytes](PinnedBlock* block) { return block->serves(bytes); });
  if (found == spare.end()) return Pinned(new PinnedBlock(bytes));
  Pinned block(*found);
  spare.erase(found);
  return block;
}

void copy(CUdeviceptr target, void const* source, size_t bytes, CUstream stream) {
  CUresult code;
  {
    // The copy blocks while the driver's queue is full; a host callback on that queue may want the interpreter.
    py::gil_scoped_release release;
    code = driver().cuMemcpyHtoDAsync(target, source, bytes, stream);
  }
  check(code, "cuMemcpyHtoDAsync");
}

/// While a thread captures, calls that might wait for the device are refused to it. Those in this scope do not touch
/// what is captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(RelaxedCapture const&) = delete;
  RelaxedCapture& operator=(RelaxedCapture const&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

PinnedBlock::PinnedBlock(size_t bytes) : bytes_(64 << 10) {
  while (bytes_ < bytes) bytes_ *= 2;
  driver().cuCtxGetCurrent(&context_);
  check(driver().cuMemHostAlloc(&data_, bytes_, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
}

bool PinnedBlock::serves(size_t bytes) const {
  CUcontext current = nullptr;
  driver().cuCtxGetCurrent(&current);
  return bytes <= bytes_ && current == context_ && (!last_copy_ || last_copy_->done());
}

void PinnedBlock::mark(CUstream stream) {
  if (!last_copy_ || last_copy_.use_count() > 1) last_copy_ = std::make_shared<Event>();
  last_copy_->record(stream);
}

void GiveBack::operator()(PinnedBlock* block) const { spare_blocks().push_back(block); }

void send(CUdeviceptr target, void const* source, size_t bytes, CUstream stream) {
  if (bytes <= kTakenAtOnce) return copy(target, source, bytes, stream);
  Pinned block = take_block(bytes);
  std::memcpy(block->data(), source, bytes);
  copy(target, block->data(), bytes, stream);
  block->mark(stream);
}

void Outbox::send(CUdeviceptr target, void const* source, size_t bytes, CUstream stream) {
  if (!make_room(bytes, stream)) return pycutlass::send(target, source, bytes, stream);
  void* place = static_cast<unsigned char*>(blocks_[now_]->data()) + used_;
  used_ += bytes;
  std::memcpy(place, source, bytes);
  copy(target, place, bytes, stream);
}

bool Outbox::make_room(size_t bytes, CUstream stream) {
  if (bytes > kOutboxBlock / 4) return false;
  if (blocks_[now_] && used_ + bytes <= kOutboxBlock) return true;
  Pinned& other = blocks_[1 - now_];
  if (!other) {
    RelaxedCapture relaxed;
    other = take_block(kOutboxBlock);
  } else if (!other->serves(kOutboxBlock)) {
    return false;  // the device is far behind
  }
  if (blocks_[now_]) blocks_[now_]->mark(stream);
  now_ = 1 - now_;
  used_ = 0;
  return true;
}

Pinned send_captured(CUdeviceptr target, void const* source, size_t bytes, CUstream stream) {
  Pinned block;
  {
    RelaxedCapture relaxed;
    block = take_block(bytes);
  }
  std::memcpy(block->data(), source, bytes);
  copy(target, block->data(), bytes, stream);
  return block;
}

}  // namespace pycutlass
