// What a thread waits for and where it runs, for one program of one source file. To be included behind CUTLASS.
#pragma once

void __syncthreads() { emulation::wait_for_block(); }
int __syncthreads_and(int) { emulation::fail("no kernel that is emulated has a semaphore"); }
void __syncwarp(unsigned) { emulation::wait_for_warp(); }
namespace cutlass {
namespace arch {
int LaneId() { return emulation::lane(); }
int SmId() { return 0; }
}  // namespace arch
}  // namespace cutlass
