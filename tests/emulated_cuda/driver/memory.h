// Device memory: allocations in an arena of addresses that are never used twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../cuda_abi.h"

namespace emulated {

// Reserves the arena, and reports accesses to parts that are not accessible.
void reserve_arena();

// Null when the device has not so much left. The bytes are poisoned.
CUdeviceptr allocate(int device, size_t bytes);

// False where no allocation starts. Checks the guards.
bool release(CUdeviceptr address);
void release_all(int device);

bool is_allocation(CUdeviceptr address);
size_t used_bytes(int device);
size_t device_memory_bytes(int device);

// Whether an address lies where device memory lies, allocated or not.
bool in_arena(uint64_t address);

// Whether the bytes lie within one allocation. An address just behind the end has zero bytes.
bool in_allocation(uint64_t address, size_t bytes);

// Ends the process unless the bytes lie within one allocation.
void check_range(const char* what, uint64_t address, size_t bytes);

// Ends the process when something was written before or behind the allocation of an address.
void check_guards(const char* what, uint64_t address);

// While one exists, device memory is accessible, which matters with EMULATED_CUDA_PROTECT=1.
class MemoryAccess {
public:
    MemoryAccess();
    ~MemoryAccess();
    MemoryAccess(const MemoryAccess&) = delete;
};

}  // namespace emulated
