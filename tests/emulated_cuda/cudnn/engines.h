// Engines: which there are for a device, how they can be set, and how much workspace they need.
#pragma once

#include <map>

#include "attention.h"

namespace emulated {

// An engine as it is set.
struct Configuration {
    int64_t engine;
    std::map<int, int64_t> knobs;
};

// Best first.
std::vector<Configuration> offered(const Attention& attention);

bool exists(int64_t engine, const Attention& attention);

// What a plan needs; negative where no kernel is set like this.
int64_t workspace_bytes(const Configuration& configuration, const Attention& attention);

Order order_of_sums(const Configuration& configuration);

// The compute capability of the current device, as in 90.
int compute_capability();

}  // namespace emulated
