//! Holds the project to its style: sizes, headers, names, reasons.
//!
//! Every rule is a function that returns violations as `path:line: text`, with a test beside it
//! that shows it a bad sample. All violations are listed at once.

mod files;
mod functions;
mod project;
mod scripts;
mod text;

use files::File;

/// Longest source file in lines.
const FILE_LINES_MAX: usize = 400;
/// Longest function in lines, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest line of source in columns.
const COLUMNS_MAX: usize = 100;
/// Longest ARCHITECTURE.md in lines.
const ARCHITECTURE_LINES_MAX: usize = 200;
/// The heart of the project fits one screen: file, its lines, function, its lines.
const STEP_BUDGET: (&str, usize, &str, usize) = ("trainer/src/step.rs", 160, "step", 45);

fn violations(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        found.extend(text::violations(file));
        found.extend(functions::violations(file));
    }
    found.extend(project::violations(files));
    found
}

#[test]
fn the_project_is_tidy() {
    let files = files::of_the_project();
    assert!(files.iter().any(|file| file.path == "tests/tidy/main.rs"), "files were not found");
    let found = violations(&files);
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}
