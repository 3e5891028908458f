//! Checks rules that no other tool checks: headers, ASCII, reasons for dependencies, listed skips,
//! paths in documents, arrows between crates and circles of folders.
//!
//! Every rule is a function that returns violations as `path:line: text`, and has a test that shows
//! it a bad sample. All violations are reported at once. `style` only prints: nothing there fails.

mod arrows;
mod files;
mod functions;
mod gpu_check;
mod gpu_programs;
mod gpu_vs_torch;
mod paths;
mod project;
mod scripts;
mod style;
mod text;
mod tuples;

use files::File;

fn violations(files: &[File]) -> Vec<String> {
    let mut found: Vec<String> = files.iter().flat_map(text::violations).collect();
    found.extend(project::violations(files));
    found.extend(paths::violations(files));
    found.extend(arrows::violations(files));
    found
}

#[test]
fn the_project_is_tidy() {
    let files = files::of_project();
    assert!(files.iter().any(|file| file.path == "tests/tidy/main.rs"), "files were not found");
    let found = violations(&files);
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}
