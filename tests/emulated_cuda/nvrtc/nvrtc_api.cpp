// NVRTC's functions.
#include <algorithm>
#include <cstring>

#include "../cuda_abi.h"
#include "program.h"

using emulated::Outcome;
using emulated::Program;

enum nvrtcResult : int {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
};

CUDA_API const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
        case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
        case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
        case NVRTC_ERROR_PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
        case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
        case NVRTC_ERROR_INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
        default: return "NVRTC_ERROR unknown";
    }
}

CUDA_API nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 9;
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = int(emulated::supported_architectures().size());
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
    const std::vector<int>& supported = emulated::supported_architectures();
    std::copy(supported.begin(), supported.end(), architectures);
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcCreateProgram(Program** program, const char* source, const char* name,
                                        int header_count, const char* const* headers,
                                        const char* const* header_names) {
    if (program == nullptr || source == nullptr || header_count < 0) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    Program* created = new Program;
    created->source = source;
    created->name = name == nullptr ? "" : name;
    for (int i = 0; i < header_count; i++) {
        created->headers.push_back({header_names[i], headers[i]});
    }
    *program = created;
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcDestroyProgram(Program** program) {
    if (program == nullptr || *program == nullptr) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (program == nullptr) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    const std::vector<std::string> texts(options, options + count);
    switch (emulated::compile(*program, texts)) {
        case Outcome::Success: return NVRTC_SUCCESS;
        case Outcome::InvalidOption: return NVRTC_ERROR_INVALID_OPTION;
        case Outcome::CompilationFailed: return NVRTC_ERROR_COMPILATION;
        default: return NVRTC_ERROR_INTERNAL_ERROR;
    }
}

// The text of the program's log, with its terminator.
CUDA_API nvrtcResult nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    if (program == nullptr) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    *bytes = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetProgramLog(Program* program, char* log) {
    if (program == nullptr) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return NVRTC_SUCCESS;
}

// Zero for a virtual architecture, as with NVRTC.
CUDA_API nvrtcResult nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    if (program == nullptr || program->ptx.empty()) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    *bytes = program->cubin.size();
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetCUBIN(Program* program, char* cubin) {
    if (program == nullptr || program->cubin.empty()) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    memcpy(cubin, program->cubin.data(), program->cubin.size());
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetPTXSize(Program* program, size_t* bytes) {
    if (program == nullptr || program->ptx.empty()) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    *bytes = program->ptx.size() + 1;
    return NVRTC_SUCCESS;
}

CUDA_API nvrtcResult nvrtcGetPTX(Program* program, char* ptx) {
    if (program == nullptr || program->ptx.empty()) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    memcpy(ptx, program->ptx.c_str(), program->ptx.size() + 1);
    return NVRTC_SUCCESS;
}
