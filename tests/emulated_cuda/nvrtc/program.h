// A program of the emulated NVRTC, and its compilation by g++.
#pragma once

#include <string>
#include <vector>

namespace emulated {

struct Header {
    std::string name;
    std::string text;
};

struct Program {
    std::string name;
    std::string source;
    std::vector<Header> headers;
    std::string log;
    // Empty until compiled.
    std::string cubin;
    std::string ptx;
};

enum class Outcome { Success, InvalidOption, CompilationFailed, InternalError };

// Sets log, cubin and ptx.
Outcome compile(Program& program, const std::vector<std::string>& options);

// The architectures that --gpu-architecture may name, ascending.
const std::vector<int>& supported_architectures();

}  // namespace emulated
