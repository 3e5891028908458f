// The barrier of a block, and warp operations: barriers, shuffles and votes.
#pragma once

#include "engine.h"

#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

DEV void __syncthreads(SIMT_HERE) { simt::sync_block({"__syncthreads", file, line}); }

DEV void __syncwarp(u32 mask = 0xffffffffu, SIMT_HERE) {
    int nothing = 0;
    simt::rendezvous(mask, {"__syncwarp", file, line}, nothing, [](int**) {});
}

namespace simt {

template <class T>
struct Shuffle {
    T value;
    T result;
    int source;
};

template <class T>
DEV T shuffle(u32 mask, const Place& place, T value, int source) {
    Shuffle<T> own = {value, value, source};
    rendezvous(mask, place, own, [mask](Shuffle<T>** lanes) {
        for (int lane = 0; lane < LANES; lane++) {
            if ((mask >> lane & 1) == 0) {
                continue;
            }
            if ((mask >> lanes[lane]->source & 1) == 0) {
                die("a shuffle reads a lane that is not in the mask");
            }
            lanes[lane]->result = lanes[lanes[lane]->source]->value;
        }
    });
    return own.result;
}

// The lane at a distance, or the own one where that lies outside of the segment of `width` lanes.
DEV int lane_within(int lane, int source, int width) {
    const int segment = lane / width * width;
    return source >= segment && source < segment + width ? source : lane;
}

// Calls `merge` of one word per lane; every lane of the mask gets the result.
template <class Merge>
DEV u32 vote(u32 mask, const Place& place, bool predicate, Merge merge) {
    struct Vote {
        bool predicate;
        u32 result;
    };
    Vote own = {predicate, 0};
    rendezvous(mask, place, own, [mask, merge](Vote** lanes) {
        u32 ballot = 0;
        for (int lane = 0; lane < LANES; lane++) {
            if ((mask >> lane & 1) && lanes[lane]->predicate) {
                ballot |= 1u << lane;
            }
        }
        for (int lane = 0; lane < LANES; lane++) {
            if (mask >> lane & 1) {
                lanes[lane]->result = merge(ballot);
            }
        }
    });
    return own.result;
}

}  // namespace simt

template <class T>
DEV T __shfl_sync(u32 mask, T value, int source, int width = 32, SIMT_HERE) {
    simt::refuse_elementwise("__shfl_sync");
    const int lane = simt::current->lane;
    const int from = lane / width * width + (source & (width - 1));
    return simt::shuffle(mask, {"__shfl_sync", file, line}, value, from);
}

template <class T>
DEV T __shfl_xor_sync(u32 mask, T value, int lanes, int width = 32, SIMT_HERE) {
    simt::refuse_elementwise("__shfl_xor_sync");
    const int lane = simt::current->lane;
    const int from = simt::lane_within(lane, lane ^ lanes, width);
    return simt::shuffle(mask, {"__shfl_xor_sync", file, line}, value, from);
}

template <class T>
DEV T __shfl_down_sync(u32 mask, T value, unsigned distance, int width = 32, SIMT_HERE) {
    simt::refuse_elementwise("__shfl_down_sync");
    const int lane = simt::current->lane;
    const int from = simt::lane_within(lane, lane + int(distance), width);
    return simt::shuffle(mask, {"__shfl_down_sync", file, line}, value, from);
}

template <class T>
DEV T __shfl_up_sync(u32 mask, T value, unsigned distance, int width = 32, SIMT_HERE) {
    simt::refuse_elementwise("__shfl_up_sync");
    const int lane = simt::current->lane;
    const int from = simt::lane_within(lane, lane - int(distance), width);
    return simt::shuffle(mask, {"__shfl_up_sync", file, line}, value, from);
}

DEV u32 __ballot_sync(u32 mask, int predicate, SIMT_HERE) {
    const simt::Place place = {"__ballot_sync", file, line};
    return simt::vote(mask, place, predicate != 0, [](u32 ballot) { return ballot; });
}

DEV int __any_sync(u32 mask, int predicate, SIMT_HERE) {
    const simt::Place place = {"__any_sync", file, line};
    const auto any = [](u32 ballot) { return u32(ballot != 0); };
    return int(simt::vote(mask, place, predicate != 0, any));
}

DEV int __all_sync(u32 mask, int predicate, SIMT_HERE) {
    const simt::Place place = {"__all_sync", file, line};
    const auto all = [mask](u32 ballot) { return u32(ballot == mask); };
    return int(simt::vote(mask, place, predicate != 0, all));
}
