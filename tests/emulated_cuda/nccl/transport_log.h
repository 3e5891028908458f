// What the log says about transports: a ring of two channels, as in NCCL, which connects them when
// the first collective is launched.
#pragma once

#include "segment.h"

namespace emulated {

// The NICs and variables, when a communicator is created.
void log_network();
// The connections of a rank.
void log_connections(Segment& segment, int ranks, int rank);

}  // namespace emulated
