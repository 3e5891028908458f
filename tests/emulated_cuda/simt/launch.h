// Launches: what the emulated driver calls in a kernel's shared object.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "engine.h"
#include "launch_abi.h"

namespace simt {

template <auto kernel>
struct Bound;

// A kernel and its parameters.
template <class... Parameters, void (*kernel)(Parameters...)>
struct Bound<kernel> {
    static constexpr int count = sizeof...(Parameters);
    static constexpr int bytes[] = {int(sizeof(Parameters))..., 0};
    static constexpr bool is_pointer[] = {std::is_pointer_v<Parameters>..., false};

    static void call(void** arguments) {
        call_with(arguments, std::index_sequence_for<Parameters...>());
    }

    template <size_t... I>
    static void call_with([[maybe_unused]] void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_const_t<Parameters>*>(arguments[I])...);
    }
};

DEV dim3 block_at(size_t index) {
    const size_t x = grid_size.x;
    const size_t y = grid_size.y;
    return dim3{unsigned(index % x), unsigned(index / x % y), unsigned(index / (x * y))};
}

// Calls `run` with every block's index set: ascending, or by the seed rotated and reversed.
template <class Run>
DEV void for_each_block(Run run) {
    const size_t blocks = size_t(grid_size.x) * grid_size.y * grid_size.z;
    const size_t start = seed() != 0 ? random_number() % blocks : 0;
    const bool reversed = seed() % 2 == 1;
    for (size_t i = 0; i < blocks; i++) {
        const size_t index = (start + i) % blocks;
        block_index = block_at(reversed ? blocks - 1 - index : index);
        run();
    }
}

DEV void set_launch(const char* name, const unsigned* grid, const unsigned* block) {
    kernel_name = name;
    grid_size = dim3{grid[0], grid[1], grid[2]};
    block_size = dim3{block[0], block[1], block[2]};
    threads = int(block_size.x * block_size.y * block_size.z);
}

template <auto kernel>
static void launch_fibers(const char* name, const unsigned* grid, const unsigned* block,
                          size_t shared_bytes, void** arguments) {
    elementwise = false;
    set_launch(name, grid, block);
    kernel_body = Bound<kernel>::call;
    kernel_arguments = arguments;
    make_stacks();
    if (shared_bytes > DYNAMIC_SHARED_MAX) {
        die("more dynamic shared memory than a block can have");
    }
    for_each_block([=] { run_block_of_fibers(shared_bytes); });
}

// Without fibers: each thread is a plain call.
template <auto kernel>
static void launch_elementwise(const char* name, const unsigned* grid, const unsigned* block,
                               size_t /*shared_bytes*/, void** arguments) {
    elementwise = true;
    set_launch(name, grid, block);
    for_each_block([=] {
        for (unsigned z = 0; z < block_size.z; z++) {
            for (unsigned y = 0; y < block_size.y; y++) {
                for (unsigned x = 0; x < block_size.x; x++) {
                    thread_index = dim3{x, y, z};
                    Bound<kernel>::call(arguments);
                }
            }
        }
    });
}

// For a test that calls a kernel without the driver: simt::launch<kernel>(grid, block, bytes, ...).
template <auto kernel, class... Arguments>
static void launch(dim3 grid, dim3 block, size_t shared_bytes, Arguments... arguments) {
    const unsigned grid_sizes[] = {grid.x, grid.y, grid.z};
    const unsigned block_sizes[] = {block.x, block.y, block.z};
    void* pointers[] = {&arguments..., nullptr};
    launch_fibers<kernel>("of a test", grid_sizes, block_sizes, shared_bytes, pointers);
}

}  // namespace simt

#define SIMT_EXPORT(name, launch_function)                                                       \
    static void simt_run_##name(const unsigned* grid, const unsigned* block, size_t shared_bytes, \
                                void** arguments) {                                              \
        launch_function<name>(#name, grid, block, shared_bytes, arguments);                      \
    }                                                                                            \
    extern "C" __attribute__((visibility("default"))) const SimtKernel simt_kernel_##name;       \
    const SimtKernel simt_kernel_##name = {SIMT_VERSION, simt::Bound<name>::count,               \
                                           simt::Bound<name>::bytes,                             \
                                           simt::Bound<name>::is_pointer, simt_run_##name};

// A kernel that the driver may launch.
#define EXPORT_KERNEL(name) SIMT_EXPORT(name, simt::launch_fibers)

// A kernel without any barrier, warp operation or shared memory: its threads need no fibers.
#define EXPORT_KERNEL_ELEMENTWISE(name) SIMT_EXPORT(name, simt::launch_elementwise)
