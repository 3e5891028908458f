// Atomic operations. Fibers only switch at barriers and warp operations, so plain code is atomic.
#pragma once

#include "types.h"

template <class T>
DEV T atomicExch(T* address, T value) {
    const T old = *address;
    *address = value;
    return old;
}

template <class T>
DEV T atomicAdd(T* address, T value) {
    return atomicExch(address, T(*address + value));
}

template <class T>
DEV T atomicMin(T* address, T value) {
    return atomicExch(address, value < *address ? value : *address);
}

template <class T>
DEV T atomicMax(T* address, T value) {
    return atomicExch(address, value > *address ? value : *address);
}

template <class T>
DEV T atomicOr(T* address, T value) {
    return atomicExch(address, T(*address | value));
}

template <class T>
DEV T atomicCAS(T* address, T expected, T value) {
    return atomicExch(address, *address == expected ? value : *address);
}
