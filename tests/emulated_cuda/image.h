// The format of the images that the emulated NVRTC makes and the emulated driver loads: a text
// header with the architecture, the size and a checksum, and the bytes of a shared object. An image
// is complete in itself, so that it may be cached anywhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace emulated {

constexpr const char* IMAGE_MAGIC = "EMULATED CUDA IMAGE 1\n";

struct Image {
    int architecture = 0;
    std::string shared_object;
};

// FNV-1a.
inline uint64_t checksum(const char* bytes, size_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3u;
    }
    return hash;
}

inline std::string encode(const Image& image) {
    const std::string& object = image.shared_object;
    char header[120];
    snprintf(header, sizeof header, "%sarchitecture %d bytes %zu checksum %016llx\n", IMAGE_MAGIC,
             image.architecture, object.size(),
             (unsigned long long)checksum(object.data(), object.size()));
    return header + object;
}

// False for anything else than what encode() made. Nothing behind a wrong header is read.
inline bool decode(const char* bytes, Image& image) {
    const std::string magic = IMAGE_MAGIC;
    for (size_t i = 0; i < magic.size(); i++) {
        if (bytes[i] != magic[i]) {
            return false;
        }
    }
    size_t size = 0;
    unsigned long long expected = 0;
    int header = 0;
    const char* fields = bytes + magic.size();
    const int read = sscanf(fields, "architecture %d bytes %zu checksum %16llx%n",
                            &image.architecture, &size, &expected, &header);
    if (read != 3 || fields[header] != '\n') {
        return false;
    }
    const char* object = fields + header + 1;
    image.shared_object.assign(object, size);
    return checksum(object, size) == expected;
}

}  // namespace emulated
