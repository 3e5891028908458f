// Handles. A handle is a number that is never used again, so that a destroyed one is recognised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace emulated {

inline uintptr_t next_handle() {
    static std::mutex mutex;
    static uintptr_t last = 0x10000;
    std::lock_guard<std::mutex> lock(mutex);
    last += 16;
    return last;
}

template <class Handle, class Object>
class Registry {
public:
    Handle add(std::shared_ptr<Object> object) {
        const Handle handle = reinterpret_cast<Handle>(next_handle());
        std::lock_guard<std::mutex> lock(mutex);
        objects[handle] = std::move(object);
        return handle;
    }

    // Null for a handle that was never given, or was destroyed.
    std::shared_ptr<Object> find(Handle handle) {
        std::lock_guard<std::mutex> lock(mutex);
        const auto found = objects.find(handle);
        return found == objects.end() ? nullptr : found->second;
    }

    std::shared_ptr<Object> remove(Handle handle) {
        std::lock_guard<std::mutex> lock(mutex);
        const auto found = objects.find(handle);
        if (found == objects.end()) {
            return nullptr;
        }
        std::shared_ptr<Object> object = found->second;
        objects.erase(found);
        return object;
    }

private:
    std::mutex mutex;
    std::map<Handle, std::shared_ptr<Object>> objects;
};

}  // namespace emulated
