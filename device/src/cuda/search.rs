//! Search paths of CUDA's libraries.
//!
//! `YARDSTICK_CUDA_PATH`, where it is set, names the only folders. Otherwise the dynamic loader is
//! searched first, then the folders of `LD_LIBRARY_PATH`, of which the loader offers only the first
//! copy, then the usual folders, then NVIDIA's wheels of the Pythons here. The driver and
//! NVML belong to the kernel's module, and are in no toolkit and no wheel: unless a folder of the
//! variable has a driver, they are searched for as without the variable.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::python;

/// Folders, separated by colons, in which alone libraries other than the driver are looked for.
pub(super) const PATH_VARIABLE: &str = "YARDSTICK_CUDA_PATH";

/// Below these folders a toolkit or a driver is installed, besides `/usr/local/cuda*`.
const USUAL_FOLDERS: [&str; 4] = [
    "usr/local/nvidia/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
];

/// The variables and the files that decide where to look.
pub(super) struct Env<'a> {
    /// Reads an environment variable; `None` where it is not set or empty.
    pub(super) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The root of the file system.
    pub(super) root: &'a Path,
}

/// The file of the driver.
const DRIVER: &str = "libcuda.so.1";

/// Places of the libraries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// Places of the driver and of NVML.
    pub(super) driver: Places,
    /// Places of all others.
    pub(super) others: Places,
}

/// Places to search, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    /// The dynamic loader is asked before the folders.
    pub(super) asks_loader: bool,
    pub(super) folders: Vec<PathBuf>,
}

impl Search {
    /// Search of this process.
    pub(super) fn of_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::in_env(&Env { variable: &variable, root: Path::new("/") })
    }

    fn in_env(env: &Env<'_>) -> Self {
        let others = Places::in_env(env);
        let has_driver = others.folders.iter().any(|folder| folder.join(DRIVER).exists());
        let driver =
            if others.asks_loader || has_driver { others.clone() } else { Places::usual(env) };
        Self { driver, others }
    }
}

impl Places {
    fn in_env(env: &Env<'_>) -> Self {
        match (env.variable)(PATH_VARIABLE) {
            Some(only) => {
                let folders = std::env::split_paths(&only);
                let folders = folders.filter(|path| !path.as_os_str().is_empty());
                Self { asks_loader: false, folders: folders.collect() }
            }
            None => Self::usual(env),
        }
    }

    /// Places without a variable that names the only ones.
    fn usual(env: &Env<'_>) -> Self {
        let mut folders = loader_folders(env);
        folders.extend(toolkits(env));
        folders.extend(USUAL_FOLDERS.map(|folder| env.root.join(folder)));
        folders.extend(python::wheel_folders(env));
        folders.retain(|folder| folder.is_dir());
        Self { asks_loader: true, folders: without_repetition(folders) }
    }

    /// Candidates for a file of this name, in this order: a name without a slash is for the dynamic
    /// loader.
    pub(super) fn candidates(&self, file_name: &str) -> Vec<PathBuf> {
        let loader = self.asks_loader.then(|| PathBuf::from(file_name));
        let files = self.folders.iter().map(|folder| absolute(folder).join(file_name));
        loader.into_iter().chain(files.filter(|file| file.is_file())).collect()
    }
}

/// A library that is opened by a relative path would be another one after a change of folder.
fn absolute(folder: &Path) -> PathBuf {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Folders of `LD_LIBRARY_PATH`, which colons or semicolons separate.
fn loader_folders(env: &Env<'_>) -> Vec<PathBuf> {
    let list = (env.variable)("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = list.as_bytes().split(|byte| matches!(byte, b':' | b';'));
    let named = folders.filter(|folder| !folder.is_empty());
    named.map(|folder| PathBuf::from(OsStr::from_bytes(folder))).collect()
}

/// Folders of libraries in CUDA toolkits: those that variables name first, then the newest of
/// `/usr/local/cuda*`.
fn toolkits(env: &Env<'_>) -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| (env.variable)(name));
    let local = env.root.join("usr/local");
    let mut installed = entries(&local, |name| name.starts_with("cuda"));
    installed.reverse();
    let homes = named.map(PathBuf::from).chain(installed);
    homes.flat_map(|home| ["lib64", "lib"].map(|folder| home.join(folder))).collect()
}

/// Entries of a folder whose names are as wanted, sorted; none where it cannot be read.
pub(super) fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut paths: Vec<_> =
        names.filter(|name| is_wanted(name)).map(|name| folder.join(name)).collect();
    paths.sort();
    paths
}

/// Removes folders that occurred before: links such as `/usr/local/cuda` lead to other folders.
fn without_repetition(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = Vec::new();
    let mut first = Vec::new();
    for folder in folders {
        let place = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        if !seen.contains(&place) {
            seen.push(place);
            first.push(folder);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders that are searched below a root, relative to it.
    fn folders(root: &Path, variables: &[(&str, &Path)]) -> Vec<String> {
        let variable = |name: &str| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some(value.as_os_str().to_owned())
        };
        let places = Search::in_env(&Env { variable: &variable, root }).others;
        assert!(places.asks_loader);
        let relative = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        places.folders.iter().map(relative).collect()
    }

    fn planted(paths: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        root
    }

    #[test]
    fn toolkits_come_before_the_system_and_links_are_followed_once() {
        let root = planted(&[
            "usr/local/cuda-12.4/lib64",
            "usr/local/cuda-13.0/lib64",
            "usr/lib/x86_64-linux-gnu",
            "opt/mine/lib64",
        ]);
        let link = root.path().join("usr/local/cuda");
        std::os::unix::fs::symlink("cuda-12.4", link).unwrap();
        let home = root.path().join("opt/mine");
        assert_eq!(
            folders(root.path(), &[("CUDA_HOME", &home)]),
            [
                "opt/mine/lib64",
                "usr/local/cuda-13.0/lib64",
                "usr/local/cuda-12.4/lib64",
                "usr/lib/x86_64-linux-gnu",
            ]
        );
    }

    /// The dynamic loader itself offers the first copy only.
    #[test]
    fn every_folder_of_the_loader_s_variable_is_searched_before_toolkits() {
        let root = planted(&["a", "b", "usr/local/cuda/lib64"]);
        let listed = format!("{0}/a::{0}/missing;{0}/b", root.path().display());
        let found = folders(root.path(), &[("LD_LIBRARY_PATH", Path::new(&listed))]);
        assert_eq!(found, ["a", "b", "usr/local/cuda/lib64"]);
    }

    #[test]
    fn wheels_come_last() {
        let wheel = "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib";
        let root = planted(&[wheel, "usr/lib64"]);
        let environment = root.path().join("venv");
        assert_eq!(folders(root.path(), &[("VIRTUAL_ENV", &environment)]), ["usr/lib64", wheel]);
    }

    #[test]
    fn folders_of_the_variable_are_the_only_ones() {
        let root = planted(&["usr/local/cuda/lib64"]);
        let variable = |name: &str| (name == PATH_VARIABLE).then(|| "/a::/b".into());
        let env = Env { variable: &variable, root: root.path() };
        let places = Search::in_env(&env).others;
        let expected = Places { asks_loader: false, folders: vec!["/a".into(), "/b".into()] };
        assert_eq!(places, expected);
        assert_eq!(places.candidates("libnvrtc.so.12"), [] as [PathBuf; 0]);
    }

    /// Wheels have no driver.
    #[test]
    fn the_driver_is_searched_for_everywhere_unless_a_folder_of_the_variable_has_it() {
        let root = planted(&["usr/lib64", "wheels"]);
        let wheels = root.path().join("wheels");
        let variable = |name: &str| (name == PATH_VARIABLE).then(|| wheels.clone().into());
        let env = Env { variable: &variable, root: root.path() };
        let Search { driver, others } = Search::in_env(&env);
        let usual = vec![root.path().join("usr/lib64")];
        assert_eq!(driver, Places { asks_loader: true, folders: usual });
        assert_eq!(others, Places { asks_loader: false, folders: vec![wheels.clone()] });
        std::fs::write(wheels.join("libcuda.so.1"), "").unwrap();
        assert_eq!(Search::in_env(&env).driver, others);
    }

    #[test]
    fn candidates_are_the_loader_s_and_files_that_exist() {
        let root = planted(&["a", "b"]);
        let [a, b] = ["a", "b"].map(|folder| root.path().join(folder));
        std::fs::write(b.join("libx.so.1"), "").unwrap();
        let places = Places { asks_loader: true, folders: vec![a, b.clone()] };
        assert_eq!(places.candidates("libx.so.1"), ["libx.so.1".into(), b.join("libx.so.1")]);
    }
}
