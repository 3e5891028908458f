// Lines have the form of NCCL 2.30.
#include "debug_log.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

#include "../emulated_cuda.h"

namespace emulated {

enum Level { NONE, VERSION, WARN, INFO, ABORT, TRACE };

static std::string variable(const char* name) {
    const char* value = getenv(name);
    return value == nullptr ? "" : value;
}

static Level level_of(const std::string& name) {
    const char* const names[] = {"", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    for (int level = VERSION; level <= TRACE; level++) {
        if (strcasecmp(name.c_str(), names[level]) == 0) {
            return Level(level);
        }
    }
    return NONE;
}

static uint32_t subsystem(const std::string& name) {
    const struct {
        const char* name;
        uint32_t bits;
    } known[] = {{"INIT", LOG_INIT}, {"NET", LOG_NET}, {"SHM", LOG_SHM},
                 {"ENV", LOG_ENV},   {"ALL", LOG_ALL}};
    for (const auto& one : known) {
        if (strcasecmp(name.c_str(), one.name) == 0) {
            return one.bits;
        }
    }
    return 0;
}

// "INIT,NET", or "^NET" for all but that.
static uint32_t subsystems_of(std::string list) {
    if (list.empty()) {
        return LOG_INIT | LOG_ENV;
    }
    const bool excludes = list[0] == '^';
    uint32_t named = 0;
    size_t start = excludes ? 1 : 0;
    while (start <= list.size()) {
        const size_t end = std::min(list.find(',', start), list.size());
        named |= subsystem(list.substr(start, end - start));
        start = end + 1;
    }
    return excludes ? ~named : named;
}

static std::string host() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return std::string(name, strcspn(name, "."));
}

// %h is the host, %p the process, %% a percent sign, everything else itself.
static std::string expand(const std::string& pattern) {
    std::string path;
    for (size_t i = 0; i < pattern.size(); i++) {
        const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        if (pattern[i] != '%' || next == '\0') {
            path += pattern[i];
            continue;
        }
        i++;
        switch (next) {
            case '%': path += '%'; break;
            case 'h': path += host(); break;
            case 'p': path += std::to_string(getpid()); break;
            default: path += std::string("%") + next;
        }
    }
    return path;
}

struct Log {
    const Level level = level_of(variable("NCCL_DEBUG"));
    const uint32_t subsystems = subsystems_of(variable("NCCL_DEBUG_SUBSYS"));
    FILE* const file = open();

private:
    FILE* open() const {
        const std::string path = expand(variable("NCCL_DEBUG_FILE"));
        FILE* file = level > VERSION && !path.empty() ? fopen(path.c_str(), "w") : nullptr;
        if (file == nullptr) {
            return stdout;
        }
        setlinebuf(file);
        fprintf(file, "NCCL version 2.30.7+emulated\n");
        return file;
    }
};

static Log& log() {
    static Log* const instance = new Log;
    return *instance;
}

static std::string prefix() {
    char text[320];
    snprintf(text, sizeof text, "%s:%d:%ld [%d] ", host().c_str(), getpid(), syscall(SYS_gettid),
             emulated_cuda_physical_device());
    return text;
}

void log_info(uint32_t subsystems, const char* format, ...) {
    if (log().level < INFO || (log().subsystems & subsystems) == 0) {
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(log().file, "%sNCCL INFO %s\n", prefix().c_str(), text);
}

void log_warning(const char* text) {
    if (log().level < WARN) {
        return;
    }
    char when[32];
    const time_t now = time(nullptr);
    tm parts;
    strftime(when, sizeof when, "[%F %T] ", localtime_r(&now, &parts));
    fprintf(log().file, "\n%s%semulated.cc:1 (emulated) NCCL WARN %s\n", when, prefix().c_str(),
            text);
}

}  // namespace emulated
