// What the epilogue of a tile reads is asked for before the tile's mainloop, so that the memory's latency passes
// meanwhile: vectors come to the L1 cache, matrices to the L2 cache.
#pragma once

#include "pycutlass/ports.h"

namespace pycutlass {

namespace function {

// Nothing waits for these. A load whose result is not used would not do: the assembler leaves it out.
#if PYCUTLASS_DEVICE_SIDE
/// Asks for the sector of 32 bytes that an address is in, for the L1 cache.
CUTLASS_DEVICE void prefetch_sector(void const* address, bool wanted) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p prefetch.global.L1 [%0]; }"
               :
               : "l"(address), "r"(int(wanted)));
}
/// Asks for the line of 128 bytes that an address is in, for the L2 cache.
CUTLASS_DEVICE void prefetch_line(void const* address, bool wanted) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p prefetch.global.L2 [%0]; }"
               :
               : "l"(address), "r"(int(wanted)));
}
#else
// On the host nobody calls these but tests, which define them.
void prefetch_sector(void const* address, bool wanted);
void prefetch_line(void const* address, bool wanted);
#endif

}  // namespace function

/// The place of a tile of D, what D has in all, and one of the threads that share out the work.
struct TileOfThread {
  int first_row, first_column;
  int rows, columns;
  int thread;
};

/// Asks for a tile of `kTileM` x `kTileN` of each of the ports, of which one matrix each is chosen (`EachPort`). All
/// addresses are inside of the tensors. Those of vectors are of nothing that the launch writes, which the L1 cache
/// would not notice; matrices may be D itself.
template <typename Ports, int kTileM, int kTileN, int kThreads>
struct PrefetchedInputs;
template <typename... Ports, int kTileM, int kTileN, int kThreads>
struct PrefetchedInputs<List<Ports...>, kTileM, kTileN, kThreads> {
  template <typename Arguments>
  CUTLASS_DEVICE static void ask(Arguments const& chosen, TileOfThread const& tile) {
    (ask_one(Ports(), chosen, tile), ...);
  }

 private:
  template <auto kMember, int kAlignment, typename Arguments>
  CUTLASS_DEVICE static void ask_one(Matrix<kMember, kAlignment>, Arguments const& chosen, TileOfThread const& tile) {
    lines<kTileM, kTileN>(chosen.*kMember, tile.first_row, tile.rows, tile.first_column, tile.columns, tile.thread);
  }
  template <auto kMember, int kAlignment, typename Arguments>
  CUTLASS_DEVICE static void ask_one(ColumnMajorMatrix<kMember, kAlignment>, Arguments const& chosen,
                                     TileOfThread const& tile) {
    lines<kTileN, kTileM>(chosen.*kMember, tile.first_column, tile.columns, tile.first_row, tile.rows, tile.thread);
  }
  template <auto kMember, int kAlignment, typename Arguments>
  CUTLASS_DEVICE static void ask_one(Row<kMember, kAlignment>, Arguments const& chosen, TileOfThread const& tile) {
    vector<kTileN>((chosen.*kMember).data, tile.first_column, tile.columns, tile.thread);
  }
  template <auto kMember, int kAlignment, typename Arguments>
  CUTLASS_DEVICE static void ask_one(Column<kMember, kAlignment>, Arguments const& chosen, TileOfThread const& tile) {
    vector<kTileM>((chosen.*kMember).data, tile.first_row, tile.rows, tile.thread);
  }
  template <auto kMember, int kAlignment, typename Arguments>
  CUTLASS_DEVICE static void ask_one(PerBatch<kMember, kAlignment>, Arguments const& chosen, TileOfThread const& tile) {
    function::prefetch_sector((chosen.*kMember).data, tile.thread == 0);
  }

  /// `kLines` lines of a matrix, `kLength` elements of each. Where lines of the matrix do not begin at lines of the
  /// cache, one of these may be left to the tile beside this one.
  template <int kLines, int kLength, typename AnyPort>
  CUTLASS_DEVICE static void lines(AnyPort const& port, int first_line, int all_lines, int first, int end, int thread) {
    constexpr int kOfLine = 128 / int(sizeof(*port.data)), kPieces = (kLength + kOfLine - 1) / kOfLine;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLines * kPieces; i += kThreads) {
      int const number = i + thread, line = first_line + number / kPieces, place = first + number % kPieces * kOfLine;
      bool const is_inside = number < kLines * kPieces && line < all_lines && place < end;
      function::prefetch_line(port.data + line * port.stride + place, is_inside);
    }
  }
  /// `kLength` elements of a vector, which may begin anywhere in a sector of the cache.
  template <int kLength, typename Element>
  CUTLASS_DEVICE static void vector(Element const* data, int first, int end, int thread) {
    constexpr int kOfSector = 32 / int(sizeof(Element)), kSectors = (kLength + kOfSector - 1) / kOfSector + 1;
    int const last = cutlass::platform::min(first + kLength, end) - 1;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSectors; i += kThreads) {
      int const number = i + thread;
      function::prefetch_sector(data + cutlass::platform::min(first + number * kOfSector, last), number < kSectors);
    }
  }
};

}  // namespace pycutlass
