// Copy-on-write: a lazy clone shares its bytes until one of the two is written to.
#pragma once

#include "anydevice.h"

namespace anydevice {

// Whether the storage shares its bytes with lazy clones.
bool is_copy_on_write(const c10::StorageImpl& storage);

// c10 shares only bytes whose context is their address: the block behind them is put aside.
void make_shareable(c10::StorageImpl& storage);

// Once nobody shares them, the storage has its block again; false: it never had one.
bool take_block_back(c10::StorageImpl& storage);

}  // namespace anydevice
