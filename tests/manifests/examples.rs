//! Jobs in `k8s/jobs/` are equal to the rendering of their benchmark files.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The top folder of the project.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files with this extension in a folder, in order.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    found.sort();
    found
}

/// Returns the output of `yardstick k8s render` for a benchmark file.
pub(crate) fn rendered(benchmark: &Path, format: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yardstick"));
    let command = command.args(["k8s", "render", "--format", format]).arg(benchmark);
    // Variables of the machine that renders are not those of the job.
    let command = command.env_clear();
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", benchmark.display());
    String::from_utf8(output.stdout).unwrap()
}

/// The batch, of which no rendering is committed: its jobs differ from each other in two values.
fn batch() -> PathBuf {
    top().join("k8s/jobs/scaling.toml")
}

/// The jobs of `k8s/jobs` as YAML, and their files: the committed ones, and those of the batch.
pub(crate) fn jobs() -> Vec<(PathBuf, String)> {
    let committed = files(&top().join("k8s/jobs"), "yaml").into_iter();
    let read = |file: PathBuf| (file.clone(), std::fs::read_to_string(file).unwrap());
    committed.map(read).chain([(batch(), rendered(&batch(), "mpijob"))]).collect()
}

/// Rewrite with `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace --test
/// manifests`.
#[test]
fn committed_jobs_are_what_is_rendered() {
    let benchmarks = files(&top().join("k8s/jobs"), "toml");
    assert!(!benchmarks.is_empty());
    let mut expected: Vec<_> = benchmarks
        .into_iter()
        .filter(|benchmark| *benchmark != batch())
        .map(|benchmark| ("mpijob", benchmark.with_extension("yaml"), benchmark))
        .collect();
    let first = top().join("k8s/jobs/smoke-cpu.toml");
    expected.push(("trainjob", first.with_extension("trainjob.yaml"), first.clone()));
    expected.push(("argo", first.with_extension("argo.yaml"), first));
    for (format, golden, benchmark) in expected {
        let found = rendered(&benchmark, format);
        if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(found == expected, "{}: not what is rendered", golden.display());
    }
}

#[test]
fn a_file_is_written_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let benchmark = top().join("k8s/jobs/smoke-cpu.toml");
    for (out, file) in [(".", "smoke-cpu.yaml"), ("mine.yaml", "mine.yaml")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_yardstick"));
        let command = command.args(["k8s", "render"]).arg(&benchmark).args(["--out", out]);
        assert!(command.current_dir(folder.path()).status().unwrap().success());
        let written = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(written, rendered(&benchmark, "mpijob"));
    }
}

/// The frozen benchmark file in the first object of rendered YAML.
fn frozen(yaml: &str) -> String {
    let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    objects[0]["data"]["benchmark.toml"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_keeps_its_frozen_benchmark_beside_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let job = rendered(&top().join("k8s/jobs/smoke-cpu.toml"), "mpijob");
    let given = folder.path().join("given.toml");
    std::fs::write(&given, frozen(&job)).unwrap();
    let out = folder.path().join("run");
    let train = |benchmark: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_yardstick"));
        let command = command.args(["train", "--steps", "1", "--out"]).arg(&out);
        command.env("YARDSTICK_BENCHMARK", benchmark).output().unwrap()
    };
    let output = train(&folder.path().join("missing.toml"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("YARDSTICK_BENCHMARK="));
    assert!(train(&given).status.success());
    assert!(out.join("record.json").exists());
    assert!(rendered(&out.join("benchmark.toml"), "mpijob") == job, "another job");
}
