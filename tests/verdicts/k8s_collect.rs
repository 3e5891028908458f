//! `k8s collect` over nights of a job: by records that a run in a job of a cluster has left.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Finished, Folder, finish, run, text, yardstick};

const BENCHMARK: &str = r#"
[workflow]
images = { cpu = "yardstick:1" }
[workflow.storage]
[platform]
[workload]
name = "nightly"
nodes = 1
ranks_per_node = 1
workload = "smoke"
"#;

/// Returns the API server's view of a worker that was ready a minute ago, and took 95 s until then.
fn pods() -> Value {
    let now = chrono::Utc::now().timestamp();
    let at = |seconds_ago: i64| {
        chrono::DateTime::from_timestamp(now - seconds_ago, 0).unwrap().to_rfc3339()
    };
    let condition = |kind: &str, seconds_ago| {
        let since = at(seconds_ago);
        json!({ "type": kind, "status": "True", "lastTransitionTime": since })
    };
    json!({ "kind": "List", "items": [{
        "kind": "Pod",
        "metadata": {
            "name": "nightly-worker-0",
            "labels": {
                "training.kubeflow.org/job-name": "nightly",
                "training.kubeflow.org/job-role": "worker",
            },
            "creationTimestamp": at(155),
        },
        "status": {
            "conditions": [condition("PodScheduled", 150), condition("Ready", 60)],
            "containerStatuses": [{ "state": { "running": { "startedAt": at(62) } } }],
        },
    }] })
}

/// A site: files of the job, a store of records, and runs in folders of their workflows.
struct Site {
    folder: Folder,
    benchmark: PathBuf,
    pods: PathBuf,
}

impl Site {
    fn new() -> Self {
        let folder = Folder::new();
        let (benchmark, pods) = (folder.sibling("benchmark.toml"), folder.sibling("pods.json"));
        std::fs::write(&benchmark, BENCHMARK).unwrap();
        std::fs::write(&pods, self::pods().to_string()).unwrap();
        Self { folder, benchmark, pods }
    }

    /// A run of the job.
    fn night(&self, name: &str, flags: &[&str]) -> PathBuf {
        let out = self.folder.sibling("results").join("nightly").join(name);
        let store = text(&self.folder.sibling("store"));
        let common = ["train", "--steps", "4", "--out", out.to_str().unwrap(), "--records", &store];
        let mut command = yardstick(&[&common, flags].concat());
        command.env("YARDSTICK_BENCHMARK", &self.benchmark);
        finish(command).expect(0);
        out
    }

    /// Judges the job at a place.
    fn collect(&self, place: &str, flags: &[&str]) -> Finished {
        let benchmark = text(&self.benchmark);
        run(&[&["k8s", "collect", "--benchmark", &benchmark, place], flags].concat())
    }
}

fn record(run: &Path) -> Value {
    support::record(run)
}

#[test]
fn nights_of_a_job_are_judged_by_the_newest_and_show_the_way_to_the_first_step() {
    let site = Site::new();
    let results = text(&site.folder.sibling("results"));
    let store = text(&site.folder.sibling("store"));
    let first = site.night("first", &["--pods", &text(&site.pods)]);
    let known = &record(&first)["attempts"][0]["pods"];
    assert_eq!(
        (&known["scheduled_seconds"], &known["queued_seconds"]),
        (&5.0.into(), &Value::Null)
    );
    assert_eq!((&known["image_seconds"], &known["ssh_ready_seconds"]), (&88.0.into(), &2.0.into()));
    assert_eq!(record(&first)["job"]["name"], "nightly");
    run(&["report", &text(&first)]).expect(0).expect_stdout(&["ssh ready", "first step"]);
    // A file that cannot be used is no reason to fail.
    let second = site.night("second", &["--pods", &text(&site.benchmark)]);
    let anomalies = record(&second)["anomalies"].to_string();
    assert!(anomalies.contains("the start of pods is not known"), "{anomalies}");

    // Records of a store name their job.
    site.collect(&store, &[]).expect(0);
    let flags = ["--json", "--pods", &text(&site.pods)];
    let found: Value =
        serde_json::from_str(&site.collect(&results, &flags).expect(0).stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    let newest: Vec<_> = runs.iter().map(|run| (&run["name"], &run["is_newest"])).collect();
    assert_eq!(newest, [(&"first".into(), &false.into()), (&"second".into(), &true.into())]);
    let pods = |run: usize| &runs[run]["starts"][0]["pods"];
    assert_eq!(pods(0)["image_seconds"], 88.0);
    assert_eq!(*pods(1), Value::Null, "they had started before the first run began");
    assert!(runs[1]["starts"][0]["start"]["first_step_seconds"].is_f64());
    let html = text(&site.folder.sibling("page.html"));
    site.collect(&text(&first), &["--html", &html]).expect(0);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<th>ssh ready</th><td class=\"number\">2.0</td>"), "{page}");

    tear(&first);
    let torn = site.collect(&results, &[]).expect(0);
    torn.expect_stdout(&["first: not readable: ", "nightly/first/record.json, line "]);
    tear(&second);
    site.collect(&results, &[]).expect(3).expect_stdout(&["second: not readable: "]);
    run(&["k8s", "collect", &results]).expect(3);
}

/// Tears a file as a power failure does on some file systems.
fn tear(run: &Path) {
    let path = run.join("record.json");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
}
