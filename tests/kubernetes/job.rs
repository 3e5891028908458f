//! Job as users make it: a benchmark file, rendered, applied, watched, and deleted when dropped.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::render::{Format, inject, render};
use crate::wait::within;

#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) cluster: &'a Cluster,
    format: Format,
    name: String,
    yaml: String,
}

/// A pod of a job.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) node: String,
    /// Empty until it has one.
    pub(crate) address: String,
}

/// Launcher that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i64,
    pub(crate) log: String,
    /// Status of the job, from the operator.
    pub(crate) status: String,
    /// Seconds since the fault, or since the job was applied.
    pub(crate) seconds: f64,
    /// Workers at that time.
    pub(crate) workers: Vec<Pod>,
}

impl<'a> Job<'a> {
    /// Renders a job; its folder is removed. `changes` replace text of the benchmark file.
    pub(crate) fn render(cluster: &'a Cluster, name: &str, changes: &[(&str, &str)]) -> Self {
        Self::render_as(cluster, Format::Mpijob, name, changes)
    }

    /// Renders a job for another controller.
    pub(crate) fn render_as(
        cluster: &'a Cluster,
        format: Format,
        name: &str,
        changes: &[(&str, &str)],
    ) -> Self {
        let yaml = render(format, name, changes);
        let job = Self { cluster, format, name: name.to_owned(), yaml };
        job.remove();
        job
    }

    /// A fault of the program itself: `--inject`.
    pub(crate) fn inject(mut self, fault: &str) -> Self {
        self.yaml = inject(&self.yaml, fault);
        self
    }

    /// Changes the rendered job, as users do by hand.
    pub(crate) fn replace(&mut self, from: &str, to: &str) {
        assert!(self.yaml.contains(from), "no {from:?} in\n{}", self.yaml);
        self.yaml = self.yaml.replacen(from, to, 1);
    }

    pub(crate) fn apply(&self) -> Instant {
        self.cluster.apply(&self.yaml);
        Instant::now()
    }

    /// Deletes the job, and waits until its pods are gone.
    pub(crate) fn delete(&self) {
        self.kubectl(&["delete", self.format.kind(), &self.name, "--ignore-not-found"]);
        within(150, "the job's pods are gone", || self.pods("").is_empty().then_some(()));
    }

    /// Removes the job and its folders, as if it had never been.
    fn remove(&self) {
        self.delete();
        for volume in ["results", "shared"] {
            let folder = self.cluster.folder().join("volumes").join(volume).join(&self.name);
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// The folder of the run.
    pub(crate) fn run(&self) -> PathBuf {
        self.cluster.results().join(&self.name)
    }

    pub(crate) fn record(&self) -> Value {
        support::record(&self.run())
    }

    /// Waits until the launcher's log shows this step.
    pub(crate) fn wait_for_step(&self, step: u64) {
        within(90, &format!("step {step}"), || {
            let launcher = self.launcher()?;
            let has_step = |line: &str| line.trim_start().starts_with(&format!("{step}/"));
            self.log(&launcher.name).lines().any(has_step).then_some(())
        });
    }

    /// Waits for the launcher's end, for so many seconds from `start` on.
    #[track_caller]
    pub(crate) fn wait_for_end(&self, start: Instant, seconds: u64) -> Ended {
        let mut launcher = None;
        let code = within(seconds, "the launcher ends", || {
            launcher = self.launcher();
            let pod = self.cluster.get(&["pod", &launcher.as_ref()?.name]);
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64()
        });
        let seconds = start.elapsed().as_secs_f64();
        let workers = self.pods("worker");
        let status = self.wait_for_status();
        let log = self.log(&launcher.unwrap().name);
        Ended { code, log, seconds, workers, status }
    }

    /// Starts to read the launcher's log, which is lost with its pod.
    pub(crate) fn follow_log(&self) -> Child {
        let launcher = self.launcher().expect("the launcher runs");
        let follow = ["--namespace", self.cluster.namespace, "logs", "--follow", &launcher.name];
        let mut command = self.cluster.enter("kubectl", &follow);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the end of a launcher whose pod is gone: its output, and the record's exit code.
    pub(crate) fn end_by_record(&self, start: Instant, mut log: Child) -> Ended {
        let seconds = start.elapsed().as_secs_f64();
        let mut text = String::new();
        log.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        log.wait().unwrap();
        let code = self.record()["exit_code"].as_i64().expect("the run has ended");
        let status = self.wait_for_status();
        Ended { code, log: text, seconds, workers: self.pods("worker"), status }
    }

    /// Kills all processes of a pod at once, as when its node loses power. Kubernetes cannot do it:
    /// it sends SIGTERM first, whatever the grace.
    pub(crate) fn kill(&self, pod: &Pod) {
        let script = "for process in /proc/[0-9]*; do
                grep -q \"$0\" $process/cgroup && kill -KILL ${process#/proc/}
            done; true";
        let found = self.cluster.get(&["pod", &pod.name]);
        let container = found["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        let id = container.trim_start_matches("containerd://");
        self.cluster.inside("sh", &["-c", script, id], "");
    }

    /// Deletes a pod that has ended: the operator makes another of the same name.
    pub(crate) fn replace_pod(&self, pod: &Pod) {
        self.kubectl(&["delete", "pod", &pod.name, "--grace-period=0", "--force"]);
    }

    /// Lets a pod need more memory than it may use. Linux ends the rank because it is made to be
    /// the first, as the largest process of a pod would be.
    pub(crate) fn exhaust_memory(&self, pod: &Pod) {
        let script = "for process in /proc/[0-9]*; do
                grep -qxz train $process/cmdline && echo 1000 >$process/oom_score_adj
            done; tail /dev/zero; true";
        self.kubectl(&["exec", &pod.name, "--", "sh", "-c", script]);
    }

    /// Returns `Succeeded`, `Complete`, `Failed`, or any other status after 10 s.
    fn wait_for_status(&self) -> String {
        let start = Instant::now();
        loop {
            let status = self.status();
            let is_end = ["Succeeded", "Complete", "Failed"].contains(&status.as_str());
            if is_end || start.elapsed().as_secs() > 10 {
                return status;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// The conditions of the job that hold, but for `Created`.
    fn status(&self) -> String {
        let job = self.cluster.get(&[self.format.kind(), &self.name]);
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let holds = conditions.iter().filter(|condition| condition["status"] == "True");
        let types = holds.filter_map(|condition| condition["type"].as_str());
        types.filter(|name| *name != "Created").collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn launcher(&self) -> Option<Pod> {
        self.pods("launcher").pop()
    }

    /// The worker on another node than the launcher's.
    pub(crate) fn worker_elsewhere(&self) -> Pod {
        let launcher = self.launcher().expect("the launcher runs");
        let mut others = self.pods("worker").into_iter().filter(|pod| pod.node != launcher.node);
        others.next().expect("workers are on both nodes")
    }

    /// Returns the pods of a role, or all of them.
    pub(crate) fn pods(&self, role: &str) -> Vec<Pod> {
        let labels = self.format.labels(&self.name, role);
        let list = self.cluster.get(&["pods", "--selector", &labels]);
        list["items"].as_array().into_iter().flatten().map(Pod::new).collect()
    }

    /// Empty if there is none yet.
    fn log(&self, pod: &str) -> String {
        let pod = self.cluster.get(&["pod", pod]);
        let name = pod["metadata"]["name"].as_str().unwrap_or("");
        let has_started = pod["status"]["containerStatuses"][0]["state"]["waiting"].is_null()
            && pod["status"]["phase"] != "Pending";
        if has_started { self.kubectl(&["logs", name]) } else { String::new() }
    }

    /// Runs `kubectl` in our namespace.
    #[track_caller]
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(&[&["--namespace", self.cluster.namespace], arguments].concat())
    }
}

/// Also after a panic, so that the next test has the nodes to itself.
impl Drop for Job<'_> {
    fn drop(&mut self) {
        // Not in the foreground: the trainer makes the pods of a TrainJob again while it is there.
        let delete = ["delete", "--cascade=background", self.format.kind(), &self.name];
        self.cluster.try_at_last(&delete);
        let pods = self.format.labels(&self.name, "");
        let wait = ["wait", "--for=delete", "pods", "--selector", &pods, "--timeout=2m"];
        self.cluster.try_at_last(&wait);
    }
}

impl Pod {
    fn new(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        Self {
            name: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            address: text(&pod["status"]["podIP"]),
        }
    }
}

impl Ended {
    /// Fails unless the launcher ended with this code and printed all of these parts.
    #[track_caller]
    pub(crate) fn expect(&self, code: i64, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.log);
        for part in parts {
            assert!(self.log.contains(part), "no {part:?} in\n{}", self.log);
        }
    }

    /// Returns the last sentence of the launcher, or that of a rank before it if that has no cause.
    pub(crate) fn sentence(&self) -> &str {
        let last = |prefix| self.log.lines().rev().find_map(|line| line.strip_prefix(prefix));
        let of_launcher = last("launch: ").filter(|line| !line.starts_with("mpirun ended"));
        of_launcher.or(last("error: ")).unwrap_or("")
    }
}
