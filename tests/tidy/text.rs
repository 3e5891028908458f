//! Rules about text: width, characters, headers, and paths of machines.

use crate::files::File;

/// Longest line of source in columns: rustfmt leaves comments and strings alone.
const COLUMNS_MAX: usize = 100;

type Rule = fn(&File) -> Vec<String>;

const RULES: [Rule; 4] = [columns, non_ascii, header, machine_paths];

pub(crate) fn violations(file: &File) -> Vec<String> {
    RULES.iter().flat_map(|rule| rule(file)).collect()
}

/// Returns a violation for each line for which `wrong` returns a text.
fn per_line(file: &File, wrong: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(i, line)| Some(file.at(i + 1, wrong(line)?))).collect()
}

fn columns(file: &File) -> Vec<String> {
    if !file.is_source() {
        return Vec::new();
    }
    per_line(file, |line| {
        let columns = line.chars().count();
        (columns > COLUMNS_MAX).then(|| format!("{columns} columns, at most {COLUMNS_MAX}"))
    })
}

fn non_ascii(file: &File) -> Vec<String> {
    if !file.is_source() && file.extension() != "toml" && file.path != "Makefile" {
        return Vec::new();
    }
    per_line(file, |line| {
        let character = line.chars().find(|character| !character.is_ascii())?;
        Some(format!("{character:?} is not ASCII"))
    })
}

/// Requires a header in every source file: `//!` in Rust, a comment or a docstring elsewhere.
fn header(file: &File) -> Vec<String> {
    if !file.is_source() || file.text.trim().is_empty() {
        return Vec::new();
    }
    let mut lines = file.text.lines().filter(|line| !line.starts_with("#!"));
    let first = lines.find(|line| !line.trim().is_empty()).unwrap_or("");
    let marks: &[&str] = match file.extension() {
        "rs" => &["//! "],
        "cu" => &["// "],
        "py" => &["\"\"\"", "# "],
        _ => &["# "],
    };
    if marks.iter().any(|mark| first.starts_with(mark)) {
        return Vec::new();
    }
    vec![file.at(1, format!("no header: expected {} and what the file is for", marks[0]))]
}

/// Folders whose paths are those of containers, which have a user and a folder for temporary files
/// of their own.
const OF_CONTAINERS: [&str; 5] =
    ["k8s/", "trainer/cli/src/k8s/", "tests/kubernetes/", "tests/manifests/", "tests/mpijob/"];

/// Paths that exist on one developer's machine only.
fn machine_paths(file: &File) -> Vec<String> {
    let mut names = vec!["work", "Users", "mnt"];
    if !OF_CONTAINERS.iter().any(|folder| file.path.starts_with(folder)) {
        names.extend(["root", "home", "tmp"]);
    }
    per_line(file, |line| {
        let name = names.iter().find(|name| names_path(line, name))?;
        Some(format!("the path of a machine, /{name}"))
    })
}

/// Returns whether a line has the absolute path `/name` or a path below it.
fn names_path(line: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    line.match_indices(&format!("/{name}")).any(|(start, found)| {
        let before = line[..start].chars().next_back();
        let after = line[start + found.len()..].chars().next();
        let starts = !before.is_some_and(|c| is_word(c) || "/}$>*~)".contains(c));
        starts && !after.is_some_and(is_word)
    })
}

mod tests {
    use super::*;

    fn rust(text: &str) -> File {
        File::sample("a/src/b.rs", text)
    }

    #[test]
    fn long_lines_are_found() {
        let line = "x".repeat(COLUMNS_MAX);
        assert_eq!(
            columns(&rust(&format!("{line}\n{line}y\n"))),
            ["a/src/b.rs:2: 101 columns, at most 100"]
        );
    }

    #[test]
    fn foreign_characters_are_found() {
        assert_eq!(non_ascii(&rust("// 3 \u{d7} 4\n// ok\n")).len(), 1);
        assert_eq!(non_ascii(&File::sample("a.md", "3 \u{d7} 4")).len(), 0);
    }

    #[test]
    fn missing_headers_are_found() {
        for (path, text) in [
            ("a.rs", "use b;\n//! too late"),
            ("a.rs", "// not a doc comment"),
            ("a.sh", "#!/bin/sh\nset -e"),
            (".ci/run", "set -e"),
        ] {
            assert_eq!(header(&File::sample(path, text)).len(), 1, "{path}: {text}");
        }
        for (path, text) in [
            ("a.rs", "//! What it is.\nuse b;"),
            ("a.sh", "#!/bin/sh\n# What it is.\nset -e"),
            ("a.py", "#!/usr/bin/env python3\n\"\"\"What it is.\"\"\""),
            ("a.cu", "// What it is.\n"),
            ("a.toml", "a = 1"),
        ] {
            assert_eq!(header(&File::sample(path, text)).len(), 0, "{path}: {text}");
        }
    }

    #[test]
    fn paths_of_machines_are_found() {
        for (before, name, after) in [
            ("open(\"", "tmp", "/x\")"),
            ("cd ", "work", ""),
            ("see (", "home", "/me/data)"),
            ("PATH=", "root", "/bin:$PATH"),
        ] {
            let line = format!("{before}/{name}{after}");
            assert_eq!(machine_paths(&rust(&line)).len(), 1, "{line}");
        }
        for (before, name, after) in [
            ("frame", "work", ""),
            ("\"${TMPDIR}", "tmp", ""),
            ("$(mktemp -d)", "tmp", ""),
            ("", "workload", ".toml"),
            ("https:/", "home", ".example.org"),
        ] {
            let line = format!("{before}/{name}{after}");
            assert_eq!(machine_paths(&rust(&line)).len(), 0, "{line}");
        }
        let line = format!("mountPath: /{}", "tmp");
        assert_eq!(machine_paths(&File::sample("k8s/job.yaml", &line)).len(), 0);
    }
}
