// Integers that hold the product of any two of 64 bits.
#pragma once

namespace pycutlass {

__extension__ using Wide = __int128;

}  // namespace pycutlass
