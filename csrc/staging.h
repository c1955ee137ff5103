// Host memory that asynchronous copies to the device read from.
#pragma once

#include <cstddef>
#include <memory>

#include "driver.h"

namespace pycutlass {

/// Page-locked memory, and a mark of the last copy from it.
class PinnedBlock {
 public:
  explicit PinnedBlock(size_t bytes);
  PinnedBlock(PinnedBlock const&) = delete;
  PinnedBlock& operator=(PinnedBlock const&) = delete;

  void* data() const { return data_; }
  /// Whether it may be overwritten: it has `bytes`, belongs to the current context, and no copy from it is under way.
  bool serves(size_t bytes) const;
  void mark(CUstream stream) { last_copy_.record(stream); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  CUcontext context_ = nullptr;
  Event last_copy_;
};

/// Goes back to where PyCUTLASS keeps such blocks: making one is slow, and freeing one would wait for the device.
struct GiveBack {
  void operator()(PinnedBlock* block) const;
};
using Pinned = std::unique_ptr<PinnedBlock, GiveBack>;

/// Copies host memory to the device, in the order of `stream`. `source` may change as soon as this returns.
void send(CUdeviceptr target, void const* source, size_t bytes, CUstream stream);

/// The same on a stream under capture: the graph reads what is returned, whenever it is replayed.
Pinned send_captured(CUdeviceptr target, void const* source, size_t bytes, CUstream stream);

}  // namespace pycutlass
