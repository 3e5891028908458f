// Cases of the emulated device's own tests. Each runs in a child process, because what is tested
// may end it.
#pragma once

#include <cstdio>
#include <cstdlib>

// Called in the child. With `expected`, the child must abort with a line that contains it.
struct Case {
    Case(const char* name, void (*run)(), const char* expected);

    const char* name;
    void (*run)();
    const char* expected;
    Case* next;
};

// The child must exit with 0.
#define PASSES(name)                                 \
    static void name();                              \
    static Case case_##name(#name, name, nullptr);   \
    static void name()

// The child must abort with a message that contains the text.
#define ABORTS(name, text)                           \
    static void name();                              \
    static Case case_##name(#name, name, text);      \
    static void name()

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);   \
            _Exit(1);                                                                   \
        }                                                                               \
    } while (0)

#define CHECK_EQUAL(actual, expected)                                                       \
    do {                                                                                    \
        const long long actual_value = (long long)(actual);                                 \
        const long long expected_value = (long long)(expected);                             \
        if (actual_value != expected_value) {                                               \
            fprintf(stderr, "%s:%d: %s is %lld, not %s\n", __FILE__, __LINE__, #actual,     \
                    actual_value, #expected);                                               \
            _Exit(1);                                                                       \
        }                                                                                   \
    } while (0)
