// The options of nvrtcCompileProgram.
#pragma once

#include <string>
#include <vector>

namespace emulated {

struct Options {
    int architecture = 75;
    // Whether it names a real architecture (sm_), for which there is machine code.
    bool real_architecture = false;
    // Macros and include folders, for g++.
    std::vector<std::string> for_compiler;
};

// False, with an explanation, for an option that NVRTC does not have or the emulator does not know.
bool parse_options(const std::vector<std::string>& texts, Options& options, std::string& error);

const std::vector<int>& supported_architectures();

}  // namespace emulated
