#include "staging.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "driver.h"

namespace pycutlass {
namespace {

/// What the driver takes from pageable memory at once, within the call; of more it may wait for the stream.
constexpr size_t kTakenAtOnce = 64 << 10;

/// Half of what an staging ring has.
constexpr size_t kRingBlock = 64 << 10;

/// Blocks that nobody holds, of the whole process. Never destroyed: when the process ends the driver may be gone first.
/// The interpreter's lock guards it.
std::vector<PinnedBlock*>& spare_blocks() {
  static auto* blocks = new std::vector<PinnedBlock*>;
  return *blocks;
}

Pinned take_block(size_t bytes, CUcontext context) {
  std::vector<PinnedBlock*>& spare = spare_blocks();
  auto serves = [=](PinnedBlock const* block) { return block->serves(bytes, context); };
  auto found = std::find_if(spare.begin(), spare.end(), serves);
  if (found == spare.end()) return Pinned(new PinnedBlock(bytes, context));
  Pinned block(*found);
  spare.erase(found);
  return block;
}

}  // namespace

PinnedBlock::PinnedBlock(size_t bytes, CUcontext context) : bytes_(64 << 10), context_(context) {
  while (bytes_ < bytes) bytes_ *= 2;
  ContextScope scope(context);
  RelaxedCapture relaxed;
  check(unlocked([this] { return driver().cuMemHostAlloc(&data_, bytes_, CU_MEMHOSTALLOC_PORTABLE); }),
        "cuMemHostAlloc");
}

bool PinnedBlock::serves(size_t bytes, CUcontext context) const {
  return bytes <= bytes_ && context == context_ && (!last_copy_ || last_copy_->done());
}

void PinnedBlock::mark(Stream const& stream) {
  if (!last_copy_ || last_copy_.use_count() > 1) last_copy_ = std::make_shared<Event>(context_);
  stream.record(*last_copy_);
}

void GiveBack::operator()(PinnedBlock* block) const { spare_blocks().push_back(block); }

void send(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream) {
  if (bytes <= kTakenAtOnce) return stream.copy_in(target, source, bytes);
  Pinned block = take_block(bytes, stream.context());
  std::memcpy(block->data(), source, bytes);
  stream.copy_in(target, block->data(), bytes);
  block->mark(stream);
}

void StagingRing::send(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream) {
  if (!make_room(bytes, stream)) return pycutlass::send(target, source, bytes, stream);
  void* place = static_cast<unsigned char*>(blocks_[now_]->data()) + used_;
  used_ += bytes;
  std::memcpy(place, source, bytes);
  stream.copy_in(target, place, bytes);
}

bool StagingRing::make_room(size_t bytes, Stream const& stream) {
  if (bytes > kRingBlock / 4) return false;
  if (blocks_[now_] && used_ + bytes <= kRingBlock) return true;
  Pinned& other = blocks_[1 - now_];
  if (!other) {
    other = take_block(kRingBlock, stream.context());
  } else if (!other->serves(kRingBlock, stream.context())) {
    return false;  // the device is far behind
  }
  size_t const full = now_;
  now_ = 1 - now_;  // before the mark, which lets the interpreter's lock go
  used_ = 0;
  if (blocks_[full]) blocks_[full]->mark(stream);
  return true;
}

Pinned send_captured(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream) {
  Pinned block = take_block(bytes, stream.context());
  std::memcpy(block->data(), source, bytes);
  stream.copy_in(target, block->data(), bytes);
  return block;
}

}  // namespace pycutlass
