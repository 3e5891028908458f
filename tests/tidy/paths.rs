//! Rule about paths in documents: those of this repository exist.

use std::collections::BTreeSet;

use crate::files::File;

/// Endings of file names whose path is checked wherever it starts.
const ENDINGS: [&str; 4] = [".rs", ".sh", ".toml", ".md"];

/// Marks of a path that is no literal: globs, placeholders, omissions and variables.
const PLACEHOLDERS: [&str; 5] = ["*", "<", "...", "$", "//"];

/// Returns paths in backticks that do not exist, in all documents about the present state.
pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let tree = Tree::new(files);
    files.iter().filter(|file| is_current(&file.path)).flat_map(|file| tree.missing(file)).collect()
}

/// Returns whether a document is about the present: a dated decision may name removed files.
fn is_current(path: &str) -> bool {
    let is_at_top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&path);
    let is_dated = path.starts_with("docs/decisions/2");
    is_at_top || path.starts_with("docs/") && path.ends_with(".md") && !is_dated
}

/// The files and folders of the repository.
#[derive(Debug)]
struct Tree<'a> {
    /// All paths, those of folders without a slash at the end.
    paths: BTreeSet<&'a str>,
}

impl<'a> Tree<'a> {
    fn new(files: &'a [File]) -> Self {
        let mut paths = BTreeSet::new();
        for file in files {
            let folders = file.path.match_indices('/').map(|(end, _)| &file.path[..end]);
            paths.extend(folders);
            paths.insert(file.path.as_str());
        }
        Self { paths }
    }

    /// Returns a violation for each path in backticks that does not exist. Fenced blocks are left
    /// out: they show commands, output and the files of a run.
    fn missing(&self, file: &File) -> Vec<String> {
        let mut found = Vec::new();
        let mut is_fenced = false;
        for (i, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            }
            let spans = line.split('`').skip(1).step_by(2);
            let words = spans.filter(|_| !is_fenced).flat_map(str::split_whitespace);
            let missing = words.filter(|path| !self.has(path));
            found.extend(missing.map(|path| file.at(i + 1, format!("`{path}` does not exist"))));
        }
        found
    }

    /// Returns whether a word is a path that exists, or none of this repository. A path that does
    /// not start with a top-level folder may start anywhere: `step/mod.rs` is
    /// `trainer/src/step/mod.rs`.
    fn has(&self, word: &str) -> bool {
        let path = word.trim_end_matches('/');
        let first = word.split('/').next().unwrap_or("");
        let is_placeholder = PLACEHOLDERS.iter().any(|mark| word.contains(mark))
            || first.chars().all(|c| c.is_ascii_uppercase());
        if !word.contains('/') || is_placeholder {
            return true;
        }
        if self.paths.contains(first) {
            return self.paths.contains(path);
        }
        let is_file = ENDINGS.iter().any(|ending| path.ends_with(ending));
        !is_file || self.paths.iter().any(|known| ends_with_path(known, path))
    }
}

/// Returns whether the last components of `known` are those of `path`.
fn ends_with_path(known: &str, path: &str) -> bool {
    known.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

mod tests {
    use super::*;

    /// Returns the violations in a document of a repository with a few files.
    fn check(document: &str, text: &str) -> Vec<String> {
        let paths = ["trainer/src/step/mod.rs", "trainer/Cargo.toml", "scripts/a.sh", ".ci/run"];
        let mut files = Vec::from(paths.map(|path| File::sample(path, "")));
        files.push(File::sample(document, text));
        violations(&files)
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        for word in [
            "trainer/src/stop/mod.rs",
            "trainer/src/stop/",
            "scripts/b.sh --flag",
            "bash scripts/b.sh",
            ".ci/walk",
            "stop/mod.rs",
            "ep/mod.rs",
            "gone/a.sh",
            "gone/Cargo.toml",
        ] {
            assert_eq!(check("README.md", &format!("see `{word}`\n")).len(), 1, "{word}");
        }
        let text = "`trainer/` and\n`trainer/gone.rs`\n```text\n`trainer/x`\n```\n`scripts/b`\n";
        assert_eq!(
            check("docs/a/b.md", text),
            [
                "docs/a/b.md:2: `trainer/gone.rs` does not exist",
                "docs/a/b.md:6: `scripts/b` does not exist"
            ]
        );
    }

    #[test]
    fn other_words_are_left_alone() {
        for word in [
            "trainer/src/step/mod.rs",
            "trainer/src/",
            "trainer",
            "step/mod.rs",
            "trainer/*.rs",
            "trainer/<name>.rs",
            "trainer/.../mod.rs",
            "DIR/config.toml",
            "target/release/yardstick",
            "a/b",
            "mod.rs",
        ] {
            let found = check("ARCHITECTURE.md", &format!("see `{word}`\n"));
            assert_eq!(found, Vec::<String>::new(), "{word}");
        }
        assert_eq!(check("README.md", "trainer/gone.rs").len(), 0, "not in backticks");
        for document in ["docs/decisions/2026-11-20-a.md", "bench/results/a.md", "CHANGELOG.md"] {
            assert_eq!(check(document, "`trainer/gone.rs`").len(), 0, "{document}");
        }
    }
}
