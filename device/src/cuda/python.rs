//! Folders of NVIDIA's wheels (`nvidia-cuda-nvrtc-cu12` and the like) in the Pythons of a machine.
//!
//! They are found by listing folders: no Python is started.

use std::path::{Path, PathBuf};

use super::search::{Env, entries};

/// Every `nvidia/*/lib` in the Python environment that is active, in the Python that would be
/// started, and in the user's and the system's packages.
///
/// Wheels for CUDA 12 have a folder for each library (`nvidia/cuda_nvrtc/lib`), those for CUDA 13
/// have one together (`nvidia/cu13/lib`).
pub(super) fn wheel_folders(env: &Env<'_>) -> Vec<PathBuf> {
    let prefixes = prefixes(env);
    let packages = prefixes.iter().flat_map(|prefix| package_folders(prefix));
    packages
        .flat_map(|folder| entries(&folder.join("nvidia"), |_| true))
        .map(|component| component.join("lib"))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Prefixes of Python installations: `bin/python3` and `lib/python3.*` are below each.
fn prefixes(env: &Env<'_>) -> Vec<PathBuf> {
    let variable = |name| (env.variable)(name).map(PathBuf::from);
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| variable(name));
    let mut prefixes: Vec<_> = active.collect();
    if let Some(path) = (env.variable)("PATH") {
        prefixes.extend(std::env::split_paths(&path).flat_map(|bin| started_from(&bin)));
    }
    prefixes.extend(variable("HOME").map(|home| home.join(".local")));
    prefixes.extend(["usr/local", "usr"].map(|folder| env.root.join(folder)));
    prefixes
}

/// The prefixes of `python3` in one folder of PATH: the environment whose folder it is, and the
/// Python that it is a link to. pyenv has a script there, and its Pythons beside that folder.
fn started_from(bin: &Path) -> Vec<PathBuf> {
    let python = bin.join("python3");
    let Ok(target) = python.canonicalize() else {
        return Vec::new();
    };
    let Some(own) = bin.parent() else {
        return Vec::new();
    };
    let mut prefixes = vec![own.to_owned()];
    prefixes.extend(target.parent().and_then(Path::parent).map(Path::to_owned));
    prefixes.extend(entries(&own.join("versions"), |_| true));
    prefixes
}

/// Folders of packages below a prefix; `dist-packages` are Debian's.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let libraries = ["lib", "lib64"].map(|folder| prefix.join(folder));
    let pythons = libraries.iter().flat_map(|folder| entries(folder, is_python));
    pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .collect()
}

fn is_python(name: &str) -> bool {
    name.starts_with("python3")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(root: &Path, folder: &str) -> PathBuf {
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn wheels_of_both_layouts_are_found_in_every_python() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let cu12 = create(root, "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib");
        let cu13 = create(root, "conda/lib/python3.12/site-packages/nvidia/cu13/lib");
        let on_path = create(root, "other/lib64/python3.9/site-packages/nvidia/cublas/lib");
        let pyenv =
            create(root, "pyenv/versions/3.13/lib/python3.13/site-packages/nvidia/nccl/lib");
        let debian = create(root, "usr/lib/python3/dist-packages/nvidia/cublas/lib");
        create(root, "venv/lib/python3.11/site-packages/nvidia/cuda_runtime/include");
        create(root, "venv/lib/ruby/site-packages/nvidia/cu13/lib");
        for bin in ["other/bin", "pyenv/shims"] {
            std::fs::write(create(root, bin).join("python3"), "").unwrap();
        }
        let variable = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.join("venv").into_os_string()),
            "CONDA_PREFIX" => Some(root.join("conda").into_os_string()),
            "PATH" => {
                let folders = ["empty/bin", "other/bin", "pyenv/shims"].map(|bin| root.join(bin));
                Some(std::env::join_paths(folders).unwrap())
            }
            _ => None,
        };
        let mut found = wheel_folders(&Env { variable: &variable, root });
        found.dedup();
        assert_eq!(found, [cu12, cu13, on_path, pyenv, debian]);
    }

    #[test]
    fn the_python_behind_a_link_is_searched_too() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        let base = create(&root, "base/lib/python3.11/site-packages/nvidia/cu13/lib");
        std::fs::write(create(&root, "base/bin").join("python3.11"), "").unwrap();
        let bin = create(&root, "venv/bin");
        std::os::unix::fs::symlink(root.join("base/bin/python3.11"), bin.join("python3")).unwrap();
        let variable = |name: &str| (name == "PATH").then(|| bin.clone().into_os_string());
        let env = Env { variable: &variable, root: &root };
        assert_eq!(wheel_folders(&env), [base]);
    }
}
