// The options of nvrtcCompileProgram: what matters to g++ is passed on, what only matters to a GPU
// is checked and dropped, and anything else is refused.
#include "options.h"

#include <algorithm>
#include <cstdlib>

namespace emulated {

const std::vector<int>& supported_architectures() {
    static const auto* const architectures = new std::vector<int>{80, 86, 89, 90, 100, 120};
    return *architectures;
}

static bool starts_with(const std::string& text, const std::string& prefix) {
    return text.compare(0, prefix.size(), prefix) == 0;
}

// Such as sm_90, sm_90a or compute_80.
static bool parse_architecture(const std::string& text, Options& options) {
    options.real_architecture = starts_with(text, "sm_");
    if (!options.real_architecture && !starts_with(text, "compute_")) {
        return false;
    }
    const char* digits = text.c_str() + text.find('_') + 1;
    char* end = nullptr;
    options.architecture = int(strtol(digits, &end, 10));
    const std::string suffix = end;
    const bool specific = suffix == "a" && options.architecture >= 90;
    const std::vector<int>& known = supported_architectures();
    return (suffix.empty() || specific) &&
           std::count(known.begin(), known.end(), options.architecture) == 1;
}

// Options that do not change what a kernel computes beyond rounding, or only what is printed.
static bool is_ignored(const std::string& option) {
    static const char* const prefixes[] = {
        "--std=",         "-std=",          "--ptxas-options=", "-Xptxas",
        "--fmad=",        "-fmad=",         "--maxrregcount=",  "-maxrregcount=",
        "--prec-div=",    "--prec-sqrt=",   "--ftz=",           "--extra-device-vectorization",
        "--restrict",     "--line-info",    "-lineinfo",        "--generate-line-info",
        "--device-debug", "--minimal",      "--device-as-default-execution-space",
        "-default-device", "--diag-",       "-diag-",           "--disable-warnings",
        "-w",             "--warn",         "--split-compile=", "--no-cache",
    };
    return std::any_of(std::begin(prefixes), std::end(prefixes),
                       [&](const char* prefix) { return starts_with(option, prefix); });
}

static bool parse_macro_or_folder(const std::string& option, Options& options) {
    static const struct {
        const char* nvrtc;
        const char* compiler;
    } prefixes[] = {
        {"--define-macro=", "-D"}, {"--undefine-macro=", "-U"}, {"--include-path=", "-I"},
        {"-D", "-D"},              {"-U", "-U"},                {"-I", "-I"},
    };
    for (const auto& prefix : prefixes) {
        const std::string start = prefix.nvrtc;
        if (starts_with(option, start) && option.size() > start.size()) {
            options.for_compiler.push_back(prefix.compiler + option.substr(start.size()));
            return true;
        }
    }
    return false;
}

static bool parse_option(const std::string& option, Options& options) {
    for (const char* prefix : {"--gpu-architecture=", "-arch="}) {
        if (starts_with(option, prefix)) {
            return parse_architecture(option.substr(option.find('=') + 1), options);
        }
    }
    return parse_macro_or_folder(option, options) || is_ignored(option);
}

bool parse_options(const std::vector<std::string>& texts, Options& options, std::string& error) {
    for (const std::string& text : texts) {
        if (!parse_option(text, options)) {
            error = "nvrtc: error: invalid value or option: " + text + "\n";
            return false;
        }
    }
    return true;
}

}  // namespace emulated
