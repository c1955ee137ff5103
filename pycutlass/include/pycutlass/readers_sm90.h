// What threads of Hopper-native kernels read of an epilogue function's tensors for a tile: vectors when they begin it,
// matrices as they come to its subtiles.
#pragma once

#include "pycutlass/function_reduction.h"
#include "pycutlass/pairs_sm90.h"

#include <cute/tensor.hpp>

namespace pycutlass {

/// Subtiles ahead of the present one of which matrices are read, so that what the memory takes passes unnoticed.
inline constexpr int kSubtilesAhead = 2;
/// Bytes of the registers for what a thread reads of vectors when it begins a tile: of all of it, unless that is more.
/// Sums of columns take registers themselves.
inline constexpr int kMostHeldBytes = 128, kMostHeldBesideColumns = 32;

/// What a thread reads for a tile that has `kDown` x `kAcross` subtiles, of two rows and `kGroups` groups of 8 columns
/// each. It has two columns of each 8 side by side, of which `kVector` are moved at a time.
template <typename Function, int kGroups, int kVector, int kDown, int kAcross>
struct TileReaders {
  using AllReaders =
      Readers<typename Function::Inputs, typename Function::Arguments, 2, 2 * kGroups / kVector, kVector>;
  using HalfReaders = pycutlass::HalfReaders<typename Function::HalfInputs, typename Function::Arguments, kGroups>;
  /// What is read for one subtile, or for all in a line of them.
  struct SubtileReaders {
    AllReaders all;
    HalfReaders halves;
  };
  /// Subtiles side by side of which vectors are held.
  static constexpr int kColumnBytes = AllReaders::kColumnBytes + HalfReaders::kColumnBytes;
  static constexpr bool kReducesColumns =
      Reducers<typename Function::Reductions, typename Function::Number, 1, 1, 1>::kColumnLines > 0;
  static constexpr int kMostBytes = kReducesColumns ? kMostHeldBesideColumns : kMostHeldBytes;
  static constexpr int kFits = kColumnBytes > 0 ? kMostBytes / kColumnBytes : kAcross;
  static constexpr int kHeld = cute::min(kAcross, cute::max(kFits, kSubtilesAhead + 1));

  SubtileReaders columns[kHeld], lines[kDown], elements[kSubtilesAhead + 1];

  /// Loads what belongs to the columns of the j-th subtiles, or to the rows of the i-th; `where` has one of them.
  template <typename Given, typename Where>
  CUTLASS_DEVICE void load_columns(Given const& given, Where const& where, int j) {
    columns[j % kHeld].all.load_columns(given, where);
    columns[j % kHeld].halves.load_columns(given, HalfColumns<Where>(where));
  }
  template <typename Given, typename Where>
  CUTLASS_DEVICE void load_rows(Given const& given, Where const& where, int i) {
    lines[i].all.load_rows(given, where);
    lines[i].halves.load_rows(given, HalfColumns<Where>(where));
  }
  /// Loads elements of matrices for a subtile. `lane` is the number of a thread among the four that share a row.
  template <typename Given, typename Where>
  CUTLASS_DEVICE void load_elements(Given const& given, Where const& where, int subtile, int lane) {
    SubtileReaders& each = elements[subtile % (kSubtilesAhead + 1)];
    each.all.load_elements(given, where);
    each.halves.load_elements(given, HalfColumns<Where>(where), lane);
  }

  /// What was loaded for the i-th subtile from above of those that are the j-th from the left.
  CUTLASS_DEVICE Loaded<AllReaders> loaded(int i, int j) const {
    return {columns[j % kHeld].all, lines[i].all, elements[(j * kDown + i) % (kSubtilesAhead + 1)].all};
  }
  CUTLASS_DEVICE auto loaded_halves(int i, int j, int lane) const {
    return HalfReaders::turned(columns[j % kHeld].halves, lines[i].halves,
                               elements[(j * kDown + i) % (kSubtilesAhead + 1)].halves, lane);
  }
};

}  // namespace pycutlass
