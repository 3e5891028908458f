//! Tests of the assignment of pods to attempts, and of their conditions.

use serde_json::{Value, json};

use super::*;
use crate::fixtures::finished;

/// 2026-11-25 02:00 UTC.
const BEGAN_UNIX_MS: u64 = 1_795_572_000_000;

/// Formats a time like the API server.
fn at(seconds: u64) -> String {
    let unix_ms = (BEGAN_UNIX_MS + 1000 * seconds).cast_signed();
    chrono::DateTime::from_timestamp_millis(unix_ms).unwrap().to_rfc3339()
}

/// A pod that was created, had a node, a sandbox and a running container, and was ready at these
/// times.
fn pod(role: &str, [created, scheduled, sandbox, started, ready]: [u64; 5]) -> Value {
    let condition = |kind: &str, seconds| {
        let since = at(seconds);
        json!({ "type": kind, "status": "True", "lastTransitionTime": since })
    };
    json!({
        "kind": "Pod",
        "metadata": {
            "name": format!("nightly-{role}"),
            "labels": {
                "training.kubeflow.org/job-name": "nightly",
                "training.kubeflow.org/job-role": role,
            },
            "creationTimestamp": at(created),
        },
        "status": {
            "conditions": [
                condition("PodReadyToStartContainers", sandbox),
                condition("PodScheduled", scheduled),
                condition("Ready", ready),
            ],
            "containerStatuses": [{ "state": { "running": { "startedAt": at(started) } } }],
        },
    })
}

/// A worker, the launcher, and a worker that replaces one after 300 seconds.
fn pods() -> Vec<Value> {
    vec![
        pod("worker", [0, 5, 8, 90, 92]),
        pod("launcher", [0, 12, 16, 17, 18]),
        pod("worker", [300, 301, 304, 309, 312]),
    ]
}

fn list(items: &[Value]) -> PodList {
    let List { items } = serde_json::from_value(json!({ "items": items })).unwrap();
    PodList { items }
}

/// Pod times of two attempts that began after 100 and 320 seconds.
fn filled_in(items: &[Value]) -> [Option<PodTimes>; 2] {
    let mut attempts = finished().attempts;
    for (attempt, seconds) in attempts.iter_mut().zip([100, 320]) {
        attempt.pods = None;
        attempt.started_unix_ms = BEGAN_UNIX_MS + 1000 * seconds;
    }
    list(items).fill_in("nightly", &mut attempts, i64::MIN);
    [attempts[0].pods, attempts[1].pods]
}

fn times(parts: [f64; 4]) -> PodTimes {
    let [scheduled, sandbox, image, ssh_ready] = parts.map(Some);
    PodTimes {
        queued_seconds: None,
        scheduled_seconds: scheduled,
        sandbox_seconds: sandbox,
        image_seconds: image,
        ssh_ready_seconds: ssh_ready,
    }
}

#[test]
fn a_pod_that_was_replaced_is_of_the_later_attempt() {
    let [first, second] = filled_in(&pods());
    assert_eq!(first, Some(times([12.0, 4.0, 82.0, 2.0])), "the longest of worker and launcher");
    assert_eq!(second, Some(times([1.0, 3.0, 5.0, 3.0])), "only of the new worker");
}

/// An injected container is the first of those that the API server lists.
#[test]
fn containers_beside_ours_do_not_count() {
    let expected = filled_in(&pods());
    let beside = |name: &str, seconds| {
        let since = at(seconds);
        json!({ "name": name, "state": { "running": { "startedAt": since } } })
    };
    for (own, is_marked) in [("worker", false), ("node", false), ("train", true)] {
        let mut items = pods();
        for item in &mut items {
            let containers = &mut item["status"]["containerStatuses"];
            containers[0]["name"] = own.into();
            let all = [beside("istio-proxy", 9), containers[0].take(), beside("logs", 1)];
            *containers = all.into_iter().collect();
            if is_marked {
                let marked = json!({ "kubectl.kubernetes.io/default-container": own });
                item["metadata"]["annotations"] = marked;
            }
        }
        assert_eq!(filled_in(&items), expected, "{own}");
    }
}

#[test]
fn a_job_waits_in_a_queue_until_it_has_pods() {
    let mut items = pods();
    let job = json!({
        "kind": "MPIJob",
        "metadata": { "name": "nightly", "creationTimestamp": at(0).replace("02:00", "01:58") },
        "status": { "conditions": [{ "type": "Created", "status": "True" }] },
    });
    items.push(job);
    let queued = filled_in(&items).map(|pods| pods.unwrap().queued_seconds);
    assert_eq!(queued, [Some(120.0), None], "the worker of the second attempt was in no queue");
}

#[test]
fn what_one_pod_does_not_tell_is_not_known() {
    let mut items = pods();
    items[0]["status"]["conditions"][0]["status"] = "False".into();
    items[1]["status"]["conditions"][2]["status"] = "False".into();
    let first = filled_in(&items)[0].unwrap();
    assert_eq!((first.sandbox_seconds, first.image_seconds), (None, Some(85.0)));
    assert_eq!(first.ssh_ready_seconds, Some(2.0), "the launcher, which has ended, has no ssh");
    items[2]["status"] = json!({ "phase": "Pending" });
    assert_eq!(filled_in(&items)[1], None, "no attempt waited for this pod");
    assert_eq!(list(&items).only_job(), Some("nightly"));
}

#[test]
fn another_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pods.json");
    std::fs::write(&file, "NAME READY\n").unwrap();
    let error = PodList::read(&file).unwrap_err();
    assert!(error.contains("pods.json: expected what `kubectl get pods -o json`"), "{error}");
    std::fs::File::create(&file).unwrap().set_len(3 << 30).unwrap();
    let error = PodList::read(&file).unwrap_err();
    assert!(error.ends_with("expected at most 1073741824 bytes, found 3221225472"), "{error}");
}
