//! Location of cuDNN, and stand-ins for the libraries that it opens.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of libraries, separated by colons.
#[derive(Debug)]
pub(super) struct LibraryFolders {
    pub(super) path: OsString,
    /// The folder of what stands in.
    _stand_ins: tempfile::TempDir,
}

/// cuDNN and NVRTC of the wheels, a driver without a device, and a cuBLASLt that only has a
/// version.
pub(super) fn folders() -> LibraryFolders {
    let stand_ins = tempfile::tempdir().unwrap();
    compile("driver.c", "libcuda.so.1", stand_ins.path());
    compile("cublaslt.c", "libcublasLt.so.13", stand_ins.path());
    let folders = [
        stand_ins.path().to_owned(),
        wheel_folder(".venv-cudnn", "cudnn"),
        wheel_folder(".venv-nvrtc", "cu13"),
    ];
    let path = std::env::join_paths(folders).unwrap();
    LibraryFolders { path, _stand_ins: stand_ins }
}

fn compile(source: &str, library: &str, folder: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cudnn_stand_ins");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", &format!("-Wl,-soname,{library}"), "-o"]);
    cc.arg(folder.join(library)).arg(sources.join(source));
    assert!(cc.status().unwrap().success(), "{source} compiles");
}

/// The libraries of a wheel in a virtual environment that `scripts/setup.sh test` makes.
#[track_caller]
fn wheel_folder(environment: &str, component: &str) -> PathBuf {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(environment).join("lib");
    let pythons = std::fs::read_dir(&libraries).into_iter().flatten().flatten();
    let folder = pythons
        .map(|python| python.path().join("site-packages/nvidia").join(component).join("lib"))
        .find(|folder| folder.is_dir());
    folder.unwrap_or_else(|| {
        panic!("no nvidia/{component} in {}: run scripts/setup.sh test", libraries.display())
    })
}
