// Reads mutants from a file such as tests/emulated_cuda/mutants.txt:
//
//     mutant NAME
//     file models/src/ops/gelu/kernel.cu
//     -a line as it is in the file
//     +the line instead
//
// Lines that begin with - are the text to be replaced, and those with + its replacement. Spaces
// around both do not count: a text may be a part of a line.
#include "mutant.h"

#include <cstdlib>
#include <fstream>

namespace emulated {

struct Mutant {
    std::string name;
    std::string file;
    std::string find;
    std::string replacement;
};

[[noreturn]] static void refuse(const std::string& name, const std::string& what) {
    fprintf(stderr, "emulated NVRTC: mutant \"%s\": %s\n", name.c_str(), what.c_str());
    abort();
}

static bool starts_with(const std::string& text, const std::string& prefix) {
    return text.compare(0, prefix.size(), prefix) == 0;
}

static bool ends_with(const std::string& text, const std::string& suffix) {
    return text.size() >= suffix.size() &&
           text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

static std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \n");
    const size_t last = text.find_last_not_of(" \n");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// The mutant of a name. Empty where the file has none.
static Mutant read_mutant(const std::string& path, const std::string& name) {
    Mutant mutant;
    std::ifstream lines(path);
    std::string line;
    bool found = false;
    while (std::getline(lines, line)) {
        if (starts_with(line, "mutant ") || starts_with(line, "control ")) {
            found = line.substr(line.find(' ') + 1) == name;
        } else if (found && starts_with(line, "file ")) {
            mutant.name = name;
            mutant.file = line.substr(5);
        } else if (found && starts_with(line, "-")) {
            mutant.find += line.substr(1) + "\n";
        } else if (found && starts_with(line, "+")) {
            mutant.replacement += line.substr(1) + "\n";
        }
    }
    mutant.find = trimmed(mutant.find);
    mutant.replacement = trimmed(mutant.replacement);
    return mutant;
}

// The chosen mutant; without a name where none was chosen.
static const Mutant& chosen() {
    static const Mutant* const mutant = [] {
        const char* setting = getenv("EMULATED_CUDA_MUTANT");
        if (setting == nullptr || *setting == '\0') {
            return new Mutant;
        }
        const std::string text = setting;
        const size_t colon = text.find(':');
        const std::string name = colon == std::string::npos ? "" : text.substr(colon + 1);
        const Mutant read = read_mutant(text.substr(0, colon), name);
        if (read.find.empty()) {
            refuse(name, "not found in " + text.substr(0, colon));
        }
        return new Mutant(read);
    }();
    return *mutant;
}

static void replace(std::string& text, const Mutant& mutant) {
    const size_t at = text.find(mutant.find);
    if (at == std::string::npos || text.find(mutant.find, at + 1) != std::string::npos) {
        refuse(mutant.name, "its text does not occur exactly once in " + mutant.file);
    }
    text.replace(at, mutant.find.size(), mutant.replacement);
}

void apply_mutant(Program& program) {
    const Mutant& mutant = chosen();
    if (mutant.name.empty()) {
        return;
    }
    if (ends_with(mutant.file, "/" + program.name)) {
        replace(program.source, mutant);
    }
    for (Header& header : program.headers) {
        if (ends_with(mutant.file, "/" + header.name)) {
            replace(header.text, mutant);
        }
    }
}

void refuse_failed_mutant(const std::string& log) {
    if (!chosen().name.empty()) {
        refuse(chosen().name, "it does not compile:\n" + log);
    }
}

}  // namespace emulated
