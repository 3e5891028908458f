// Finds __launch_bounds__(THREADS, ...) NAME( in a source. The expression is not evaluated here but
// by the compiler, so constants of the source may occur in it.
#include "launch_bounds.h"

#include <cctype>
#include <set>

namespace emulated {

static const std::string KEYWORD = "__launch_bounds__";

static size_t skip_space(const std::string& text, size_t at) {
    while (at < text.size() && isspace(static_cast<unsigned char>(text[at]))) {
        at++;
    }
    return at;
}

static bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }

static std::string word_at(const std::string& text, size_t at) {
    size_t end = at;
    while (end < text.size() && is_word(text[end])) {
        end++;
    }
    return text.substr(at, end - at);
}

// The index behind the parenthesis that closes the one at `open`, and the first argument's end.
static size_t close_of(const std::string& text, size_t open, size_t& first_end) {
    int depth = 0;
    first_end = 0;
    for (size_t at = open; at < text.size(); at++) {
        depth += text[at] == '(';
        depth -= text[at] == ')';
        const bool argument_ends = depth == 0 || (depth == 1 && text[at] == ',');
        if (argument_ends && first_end == 0) {
            first_end = at;
        }
        if (depth == 0) {
            return at + 1;
        }
    }
    return std::string::npos;
}

// The name of the kernel whose bounds end at `at`; "void" may stand between. Empty where no
// parameters follow, as in a comment.
static std::string kernel_name(const std::string& source, size_t at) {
    size_t start = skip_space(source, at);
    std::string name = word_at(source, start);
    if (name == "void") {
        start = skip_space(source, start + name.size());
        name = word_at(source, start);
    }
    const size_t behind = skip_space(source, start + name.size());
    return behind < source.size() && source[behind] == '(' ? name : "";
}

std::string launch_bounds_declarations(const std::string& source) {
    std::string declarations;
    // A kernel may have several definitions, one for each branch of an #if.
    std::set<std::string> declared;
    size_t at = source.find(KEYWORD);
    for (; at != std::string::npos; at = source.find(KEYWORD, at)) {
        const size_t open = skip_space(source, at + KEYWORD.size());
        at += KEYWORD.size();
        if (open >= source.size() || source[open] != '(') {
            continue;
        }
        size_t first_end = 0;
        const size_t behind = close_of(source, open, first_end);
        if (behind == std::string::npos) {
            break;
        }
        const std::string name = kernel_name(source, behind);
        if (!name.empty() && declared.insert(name).second) {
            const std::string threads = source.substr(open + 1, first_end - open - 1);
            declarations += "extern \"C\" __attribute__((visibility(\"default\"))) "
                            "const int simt_threads_max_" + name + ";\n"
                            "const int simt_threads_max_" + name + " = " + threads + ";\n";
        }
    }
    return declarations;
}

}  // namespace emulated
