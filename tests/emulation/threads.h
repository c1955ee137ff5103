// The threads of one threadblock.
#pragma once

#include <vector_types.h>

#include <functional>

namespace emulation {

/// Runs `body` as each thread of a threadblock, of which `width` are side by side (all, where it is 0), in a grid of
/// that size (of one, where nobody says). A thread runs until it waits for others, so every run is the same.
void run_block(uint3 block, int threads, std::function<void()> body, int width = 0, unsigned const* grid = nullptr);
/// Has a warp be late now and then behind a barrier of threads, as `seed` draws it. Else all go on together.
void be_late(unsigned seed);
void wait_for_warp();
void wait_for_block();
/// Waits for `count` threads at one of the 16 barriers of a block, of which number 0 is that of all.
void wait_for_threads(int barrier, int count);
/// Lets others go on until it is so.
void wait_until(std::function<bool()> const& holds);
/// Number of this thread in its warp.
int lane();
/// Where a lane of this warp leaves what the others may read.
char* slot(int lane);
constexpr int kSlotBytes = 256;

}  // namespace emulation
