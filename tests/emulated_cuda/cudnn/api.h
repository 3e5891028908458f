// What the parts of the interface share.
#pragma once

#include "../driver/registry.h"
#include "engines.h"

namespace emulated {

// All that exist.
Registry<void*, Descriptor>& descriptors();

// What a plan computes, and by which engine as it is set.
Attention attention_of(const Descriptor& plan);
Configuration configuration_of(const Descriptor& plan);

}  // namespace emulated
