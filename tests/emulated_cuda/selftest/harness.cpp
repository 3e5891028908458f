// Runs all cases, or those whose names are given, and says which failed.
#include "harness.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <string>

static Case* first_case = nullptr;

Case::Case(const char* name, void (*run)(), const char* expected)
    : name(name), run(run), expected(expected), next(first_case) {
    first_case = this;
}

struct Result {
    int status = 0;
    std::string errors;
};

// Kills a child that hangs.
constexpr unsigned TIMEOUT_SECONDS = 60;

static Result run_child(const Case& one) {
    int pipes[2];
    if (pipe(pipes) != 0) {
        abort();
    }
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(TIMEOUT_SECONDS);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        one.run();
        _Exit(0);
    }
    close(pipes[1]);
    Result result;
    char bytes[4096];
    for (ssize_t count = 0; (count = read(pipes[0], bytes, sizeof bytes)) > 0;) {
        result.errors.append(bytes, size_t(count));
    }
    close(pipes[0]);
    waitpid(child, &result.status, 0);
    return result;
}

static bool as_expected(const Case& one, const Result& result) {
    if (one.expected == nullptr) {
        return WIFEXITED(result.status) && WEXITSTATUS(result.status) == 0;
    }
    const bool aborted = WIFSIGNALED(result.status) && WTERMSIG(result.status) == SIGABRT;
    return aborted && result.errors.find(one.expected) != std::string::npos;
}

static void explain(const Case& one, const Result& result) {
    if (one.expected != nullptr) {
        printf("     expected an abort with \"%s\"\n", one.expected);
    }
    printf("     wait status 0x%x, and on stderr:\n%s\n", result.status, result.errors.c_str());
}

static bool is_selected(const Case& one, int count, char** names) {
    bool selected = count == 0;
    for (int i = 0; i < count; i++) {
        selected |= strcmp(one.name, names[i]) == 0;
    }
    return selected;
}

static double seconds() {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

int main(int argument_count, char** arguments) {
    int passed = 0;
    int failed = 0;
    for (const Case* one = first_case; one != nullptr; one = one->next) {
        if (!is_selected(*one, argument_count - 1, arguments + 1)) {
            continue;
        }
        const double start = seconds();
        const Result result = run_child(*one);
        const bool good = as_expected(*one, result);
        printf("%s %s (%.2f s)\n", good ? "ok  " : "FAIL", one->name, seconds() - start);
        if (!good) {
            explain(*one, result);
        }
        (good ? passed : failed)++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
