// Descriptors as they are stored: attributes by number, as the caller wrote them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "../cuda_abi.h"
#include "types.h"

namespace emulated {

// cudnnHandle_t.
struct DnnHandle {
    CUstream stream = nullptr;
};

struct Descriptor;

// The elements of an attribute. Numbers, flags and addresses are 64 bits here.
struct Values {
    std::vector<int64_t> numbers;
    // Weak: the caller must keep what a descriptor refers to.
    std::vector<std::weak_ptr<Descriptor>> descriptors;
};

struct Descriptor {
    explicit Descriptor(int kind) : kind(kind) {}

    const int kind;
    bool finalized = false;
    std::map<int, Values> attributes;

    bool has(int attribute) const { return attributes.count(attribute) != 0; }
    int64_t number(int attribute) const { return attributes.at(attribute).numbers.at(0); }
    const std::vector<int64_t>& numbers(int attribute) const {
        return attributes.at(attribute).numbers;
    }
    // Ends the process where what is referred to was destroyed.
    std::shared_ptr<Descriptor> descriptor(int attribute, size_t index = 0) const;
    std::vector<std::shared_ptr<Descriptor>> descriptors(int attribute) const;
};

// What may be said of a kind of descriptor.
struct AttributeRule {
    int kind;
    int attribute;
    int type;
    size_t count_min;
    size_t count_max;
    bool required;
    // Whether only the library writes it.
    bool read_only;
    // The kind of descriptor that it refers to; 0 for any.
    int refers_to;
};

// Null where a kind has no such attribute.
const AttributeRule* find_rule(int kind, int attribute);
bool is_known_kind(int kind);
// The first required attribute that is missing, or 0.
int missing_attribute(const Descriptor& descriptor);

// Remembers what was wrong, for cudnnGetLastErrorString, and returns the status.
cudnnStatus_t refuse(cudnnStatus_t status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// What the library checks when a descriptor is complete.
cudnnStatus_t check_finalized(const Descriptor& descriptor);

}  // namespace emulated
