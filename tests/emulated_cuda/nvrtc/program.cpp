// Compiles a program with g++ into a shared object, and keeps it in a cache folder.
//
// The cache is EMULATED_CUDA_CACHE, or a folder in TMPDIR. Entries are keyed by everything that the
// result depends on, and appear by rename, so that several processes can compile at the same time.
#include "program.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../image.h"
#include "launch_bounds.h"
#include "mutant.h"
#include "options.h"

namespace emulated {

namespace fs = std::filesystem;

static std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

static void write_file(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

// The folder of simt.h: include/ beside the folder of this library.
static fs::path include_folder() {
    Dl_info information = {};
    dladdr(reinterpret_cast<void*>(include_folder), &information);
    const fs::path library = fs::canonical(information.dli_fname);
    return library.parent_path().parent_path() / "include";
}

static fs::path cache_folder() {
    const char* chosen = getenv("EMULATED_CUDA_CACHE");
    if (chosen != nullptr && *chosen != '\0') {
        return chosen;
    }
    return fs::temp_directory_path() / ("emulated-cuda-cache-" + std::to_string(getuid()));
}

static bool sanitize_address() {
    const char* sanitizer = getenv("EMULATED_CUDA_SANITIZE");
    return sanitizer != nullptr && std::string(sanitizer) == "address";
}

// Patterns in uninitialised variables are found more often than the zeros that happen to be there.
// A GPU cannot read 16 bytes from another address than a multiple of 16, which x86 can: that ends
// the process.
static std::vector<std::string> compiler_flags() {
    std::vector<std::string> flags = {
        "-std=gnu++17", "-O2",  "-g1",   "-march=native",        "-ftrivial-auto-var-init=pattern",
        "-shared",      "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function",
        "-fsanitize=alignment", "-fno-sanitize-recover=alignment",
    };
    if (sanitize_address()) {
        flags.push_back("-fsanitize=address");
        flags.push_back("-fsanitize-sections=simt_shared");
    }
    return flags;
}

// What -march=native means here.
static std::string processor() {
    std::ifstream information("/proc/cpuinfo");
    std::string line;
    while (std::getline(information, line)) {
        if (line.rfind("flags", 0) == 0) {
            return line;
        }
    }
    return "";
}

static std::string simt_sources() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::recursive_directory_iterator(include_folder())) {
        if (entry.is_regular_file()) {
            paths.push_back(entry.path());
        }
    }
    std::sort(paths.begin(), paths.end());
    std::string text;
    for (const fs::path& path : paths) {
        text += read_file(path);
    }
    return text;
}

static std::string cache_key(const Program& program, const Options& options) {
    static const std::string environment = processor() + simt_sources();
    std::string text = environment + '\0' + program.source;
    for (const Header& header : program.headers) {
        text += '\0' + header.name + '\0' + header.text;
    }
    for (const std::string& flag : compiler_flags()) {
        text += '\0' + flag;
    }
    for (const std::string& option : options.for_compiler) {
        text += '\0' + option;
    }
    char key[40];
    snprintf(key, sizeof key, "%016llx-%zx",
             (unsigned long long)checksum(text.data(), text.size()), text.size());
    return key;
}

static std::string quoted(const std::string& argument) {
    std::string text = "'";
    for (const char c : argument) {
        text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return text + "'";
}

// A folder of this compilation alone, removed at the end.
class WorkFolder {
public:
    explicit WorkFolder(const fs::path& parent) {
        std::string name = (parent / "compile.XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) {
            throw std::runtime_error("cannot make a folder in " + parent.string());
        }
        path = name;
    }
    ~WorkFolder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    WorkFolder(const WorkFolder&) = delete;

    fs::path path;
};

// A name such as "ops/gelu/kernel.cu" as a file of one folder.
static std::string source_file_name(const Program& program) {
    std::string name = program.name.empty() ? "default_program" : program.name;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
}

static void write_sources(const Program& program, const fs::path& folder) {
    const std::string bounds = launch_bounds_declarations(program.source);
    write_file(folder / source_file_name(program), program.source + "\n" + bounds);
    for (const Header& header : program.headers) {
        const fs::path path = folder / header.name;
        fs::create_directories(path.parent_path());
        write_file(path, header.text);
    }
}

static std::string compiler_command(const Program& program, const Options& options) {
    std::string command = "g++";
    for (const std::string& flag : compiler_flags()) {
        command += " " + flag;
    }
    for (const std::string& option : options.for_compiler) {
        command += " " + quoted(option);
    }
    command += " -I. -I" + quoted(include_folder().string());
    command += " -o kernel.so -x c++ " + quoted(source_file_name(program));
    return command;
}

// True when the folder then has kernel.so. The compiler's output is in `log`.
static bool run_compiler(const Program& program, const Options& options, const fs::path& folder,
                         std::string& log) {
    write_sources(program, folder);
    // An AddressSanitizer that is preloaded into this process is not meant for the compiler.
    const std::string command = "cd " + quoted(folder.string()) + " && LD_PRELOAD= " +
                                compiler_command(program, options) + " > log 2>&1";
    const int status = system(command.c_str());
    log = read_file(folder / "log");
    return status == 0;
}

static Outcome compile_to_cache(Program& program, const Options& options, const fs::path& cached) {
    const WorkFolder work(cached.parent_path());
    if (!run_compiler(program, options, work.path, program.log)) {
        refuse_failed_mutant(program.log);
        return Outcome::CompilationFailed;
    }
    fs::rename(work.path / "kernel.so", cached);
    return Outcome::Success;
}

// The log that EMULATED_CUDA_COMPILER_LOG=NAME:TEXT plants into a program of that name.
static std::string planted_log(const Program& program) {
    const char* setting = getenv("EMULATED_CUDA_COMPILER_LOG");
    const std::string text = setting != nullptr ? setting : "";
    const std::string start = program.name + ":";
    return text.rfind(start, 0) == 0 ? text.substr(start.size()) + "\n" : "";
}

static Outcome compile_checked(Program& program, const Options& options) {
    const fs::path folder = cache_folder();
    fs::create_directories(folder);
    const fs::path cached = folder / (cache_key(program, options) + ".so");
    if (!fs::exists(cached)) {
        const Outcome outcome = compile_to_cache(program, options, cached);
        if (outcome != Outcome::Success) {
            return outcome;
        }
    }
    Image image;
    image.architecture = options.architecture;
    image.shared_object = read_file(cached);
    if (options.real_architecture) {
        program.cubin = encode(image);
    }
    program.log += planted_log(program);
    program.ptx = "// PTX of the emulated NVRTC: load the CUBIN instead\n";
    return Outcome::Success;
}

Outcome compile(Program& program, const std::vector<std::string>& texts) {
    program.log.clear();
    Options options;
    if (!parse_options(texts, options, program.log)) {
        return Outcome::InvalidOption;
    }
    apply_mutant(program);
    try {
        return compile_checked(program, options);
    } catch (const std::exception& error) {
        program.log = std::string("emulated NVRTC: ") + error.what() + "\n";
        return Outcome::InternalError;
    }
}

}  // namespace emulated
