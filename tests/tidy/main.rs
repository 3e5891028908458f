//! Checks rules that no other tool checks: lines, headers, listed skips and waits, times of groups,
//! paths in documents, arrows between crates and circles of folders, errors to plant; and scripts
//! that judge tests.
//!
//! Every rule is a function that returns violations as `path:line: text`, and has a test that shows
//! it a bad sample. All violations are reported at once.

mod arrows;
mod files;
mod mutants;
mod paths;
mod scripts;
mod skips;
mod slow;
mod text;
mod times;

use files::File;

fn violations(files: &[File]) -> Vec<String> {
    let mut found: Vec<String> = files.iter().flat_map(text::violations).collect();
    found.extend(skips::violations(files));
    found.extend(slow::violations(files));
    found.extend(times::violations(files));
    found.extend(paths::violations(files));
    found.extend(arrows::violations(files));
    found.extend(mutants::violations(files));
    found
}

#[test]
fn the_project_is_tidy() {
    let files = files::of_project();
    assert!(files.iter().any(|file| file.path == "tests/tidy/main.rs"), "files were not found");
    let found = violations(&files);
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}
