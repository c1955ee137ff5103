// Host memory that asynchronous copies to the device read from.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "stream.h"

namespace pycutlass {

/// Page-locked memory, and a mark of the last copy from it.
class PinnedBlock {
 public:
  /// For copies on streams of `context`, which is current.
  PinnedBlock(size_t bytes, CUcontext context);
  PinnedBlock(PinnedBlock const&) = delete;
  PinnedBlock& operator=(PinnedBlock const&) = delete;

  void* data() const { return data_; }
  /// Whether it may be overwritten: it has `bytes`, belongs to `context`, and no copy from it is under way.
  bool serves(size_t bytes, CUcontext context) const;
  /// The last copy from it is over when `stream` has come as far as it is now, ...
  void mark(Stream const& stream);
  /// ... or when `event` has come.
  void mark(std::shared_ptr<Event> event) { last_copy_ = std::move(event); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  CUcontext context_ = nullptr;
  std::shared_ptr<Event> last_copy_;
};

/// Goes back to where PyCUTLASS keeps such blocks: making one is slow, and freeing one would wait for the device.
struct GiveBack {
  void operator()(PinnedBlock* block) const;
};
using Pinned = std::unique_ptr<PinnedBlock, GiveBack>;

/// Copies host memory to the device, in the order of `stream`. `source` may change as soon as this returns.
void send(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream);

/// Sends small things one after another, each on a stream that is ordered behind the one before. While there is room in
/// page-locked memory that no copy under way reads from they go through that, which takes the driver the least time.
class StagingRing {
 public:
  void send(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream);
  /// Where the last copy is over; before the end of the staging ring, whose memory others use then.
  template <typename Mark>
  void close(Mark mark) {
    if (blocks_[now_]) blocks_[now_]->mark(std::move(mark));
  }
  /// In place of that where nothing can be marked, because the stream is captured: the memory stays as it is forever.
  void abandon() {
    for (Pinned& block : blocks_) static_cast<void>(block.release());
  }

 private:
  bool make_room(size_t bytes, Stream const& stream);

  std::array<Pinned, 2> blocks_;  // one is filled while copies from the other end
  size_t now_ = 0, used_ = 0;
};

/// Copies host memory to the device in a graph under capture: the graph reads what is returned, whenever it is
/// replayed.
Pinned send_captured(CUdeviceptr target, void const* source, size_t bytes, Stream const& stream);

}  // namespace pycutlass
