//! Text files of the project, read once.

use std::fs;
use std::path::{Path, PathBuf};

/// Text file.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the top of the project, with slashes.
    pub(crate) path: String,
    /// Content of the file.
    pub(crate) text: String,
}

impl File {
    /// A sample for a test of a rule.
    pub(crate) fn sample(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the part after the last dot of the name; empty for `Makefile`.
    pub(crate) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|text| text.to_str()).unwrap_or("")
    }

    /// Returns whether it is source code.
    pub(crate) fn is_source(&self) -> bool {
        ["rs", "cu", "sh", "py"].contains(&self.extension()) || self.path == ".ci/run"
    }

    /// The syntax tree of a Rust file; the compiler reports one that cannot be parsed.
    pub(crate) fn parse(&self) -> Option<syn::File> {
        syn::parse_file(&self.text).ok()
    }

    /// A message about a line, counted from 1.
    pub(crate) fn at(&self, line: usize, text: impl std::fmt::Display) -> String {
        format!("{}:{line}: {text}", self.path)
    }
}

/// All text files of the repository except those that git ignores (see `.gitignore`).
pub(crate) fn of_project() -> Vec<File> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    walk(&top, &mut paths);
    paths.sort();
    paths.iter().filter_map(|path| read(&top, path)).collect()
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the project can be read") {
        let path = entry.expect("the project can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if is_ignored(name) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            walk(&path, paths);
        } else {
            paths.push(path);
        }
    }
}

fn is_ignored(name: &str) -> bool {
    let is_exact = [".git", "target", "runs", "__pycache__", "Cargo.lock"].contains(&name);
    is_exact || name.starts_with("target-") || name.starts_with(".venv")
}

/// `None` for a file that is not text.
fn read(top: &Path, path: &Path) -> Option<File> {
    let name = path.strip_prefix(top).ok()?.to_str()?.to_owned();
    let text = String::from_utf8(fs::read(path).ok()?).ok()?;
    Some(File { path: name, text })
}
