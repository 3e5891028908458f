//! The sources of kernels as they are in the tree, and the ways in which the program compiles each.

use std::fs;
use std::path::{Path, PathBuf};

/// The top of the repository.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn ops() -> PathBuf {
    top().join("models/src/ops")
}

/// A file of kernels.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the folder of ops, as in `layer_norm/kernel.cu`.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// All kernel files, by name.
pub(crate) fn all() -> Vec<File> {
    with_extension("cu")
}

fn with_extension(extension: &str) -> Vec<File> {
    let mut files = Vec::new();
    collect(&ops(), extension, &mut files);
    files.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!files.is_empty(), "no .{extension} in {}", ops().display());
    files
}

fn collect(folder: &Path, extension: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            let name = path.strip_prefix(ops()).unwrap().to_str().unwrap().to_owned();
            files.push(File { name, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

/// Headers that kernels include.
pub(crate) fn headers() -> Vec<File> {
    let intrinsics = top().join("device/src/cuda/intrinsics.cuh");
    let text = fs::read_to_string(intrinsics).unwrap();
    let mut headers = with_extension("cuh");
    headers.push(File { name: "intrinsics.cuh".to_owned(), text });
    headers
}

/// The options of each compilation of a file: formats, and widths that are constants.
pub(crate) fn variants(file: &str) -> &'static [&'static [&'static str]] {
    match file {
        "adamw/kernel.cu" | "update_norm/kernel.cu" => &[&[]],
        "attention/kernel.cu" => &[
            &["-DELEMENT_F32"],
            &["-DELEMENT_F32", "-DPAIR_ACCESS"],
            &["-DELEMENT_BF16"],
            &["-DELEMENT_BF16", "-DPAIR_ACCESS"],
        ],
        "attention/flash.cu" | "attention/wgmma.cu" => {
            &[&["-DELEMENT_BF16", "-DHEAD_WIDTH=64"], &["-DELEMENT_BF16", "-DHEAD_WIDTH=128"]]
        }
        _ => &[&["-DELEMENT_F32"], &["-DELEMENT_BF16"]],
    }
}

/// Returns whether kernels of a file multiply by wgmma.
pub(crate) fn uses_wgmma(file: &str) -> bool {
    file == "attention/wgmma.cu"
}

/// Returns whether the program compiles a file for an architecture: wgmma is Hopper's alone.
pub(crate) fn is_for(file: &str, architecture: &str) -> bool {
    !uses_wgmma(file) || architecture == "sm_90a"
}

#[test]
fn every_kernel_of_the_ops_is_found() {
    let names: Vec<_> = all().into_iter().map(|file| file.name).collect();
    for name in ["layer_norm/kernel.cu", "attention/flash.cu"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
}
