//! Small files of procfs and sysfs; values that cannot be read are unknown.

use std::fs;
use std::path::Path;

/// Reads a file; empty if it cannot be read.
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Reads the number that a file consists of.
pub fn number(path: &Path) -> Option<f64> {
    text(path).trim().parse().ok()
}

/// Parses the number after the first word of a line, as in `throttled_usec 12`.
pub fn number_of(text: &str, key: &str) -> Option<f64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut words = lines.find(|words| words.clone().next() == Some(key))?;
    words.nth(1)?.parse().ok()
}

/// Names in a folder, sorted; none where it cannot be read.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
