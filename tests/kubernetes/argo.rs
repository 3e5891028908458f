//! Nightly runs as workflows, by the controller of Argo Workflows, submitted by a permitted member
//! of the group: the result of each task, and that no job is left.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::render::{Format, inject, render};
use crate::table::{Case, Row};
use crate::wait::within;
use support::text;

/// Seconds that a workflow may take: eight pods one after the other, and two jobs.
const NIGHT_SECONDS: u64 = 300;

/// The store of all nights, beside the folders of runs.
const STORE: (&str, &str) = (
    "metrics_linger = \"0s\"\n",
    "metrics_linger = \"0s\"\nrecords = \"/results/records\"\n\
     compare = [\"--allow-no-baseline\"]\n",
);

/// A WorkflowTemplate, from which each night makes a workflow.
struct Template<'a> {
    cluster: &'a Cluster,
    name: &'static str,
}

impl<'a> Template<'a> {
    /// Applies a template that trains with a fault, if any, as if none had ever run.
    fn apply(
        cluster: &'a Cluster,
        name: &'static str,
        change: (&str, &str),
        fault: Option<&str>,
    ) -> Self {
        let yaml = render(Format::Argo, name, &[change]);
        let template = Self { cluster, name };
        template.remove();
        for folder in [name, "records"] {
            let _ = std::fs::remove_dir_all(cluster.results().join(folder));
        }
        cluster.apply(&fault.map_or(yaml.clone(), |fault| inject(&yaml, fault)));
        template
    }

    /// Submits a workflow, and waits for its end.
    fn night(&self, number: u32) -> Night<'_> {
        let Self { cluster, name } = self;
        let night = format!("{name}-{number}");
        let workflow = json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": night, "namespace": cluster.namespace},
            "spec": {"workflowTemplateRef": {"name": name}},
        });
        let start = Instant::now();
        let submit = ["create", "--as=someone", "--as-group=yardstick-submitters", "--filename=-"];
        cluster.inside("kubectl", &submit, &workflow.to_string());
        let status = within(NIGHT_SECONDS, &format!("{night} ends"), || {
            let status = cluster.get(&["workflow", &night])["status"].take();
            let is_over = !status["finishedAt"].is_null();
            is_over.then_some(status)
        });
        let seconds = start.elapsed().as_secs_f64();
        Night { template: self, name: night, status, seconds }
    }

    fn remove(&self) {
        self.cluster.delete_at_last("workflow", "--all");
        self.cluster.delete_at_last("mpijob", self.name);
    }
}

/// Also after a panic, so that the next test has the nodes to itself.
impl Drop for Template<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Workflow that has ended.
struct Night<'a> {
    template: &'a Template<'a>,
    name: String,
    status: Value,
    seconds: f64,
}

impl Night<'_> {
    /// The folder of its run.
    fn run(&self) -> PathBuf {
        self.template.cluster.results().join(self.template.name).join(&self.name)
    }

    fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap()
    }

    /// Returns the node of a task; null if it was never meant to begin.
    fn task(&self, name: &str) -> &Value {
        let nodes = self.status["nodes"].as_object().unwrap();
        nodes.values().find(|node| node["displayName"] == name).unwrap_or(&Value::Null)
    }

    /// Fails unless these tasks have ended so.
    #[track_caller]
    fn expect(&self, phase: &str, tasks: &[&str]) {
        for task in tasks {
            let found = self.task(task);
            assert_eq!(found["phase"], phase, "{task}: {found:#}\n{:#}", self.status);
        }
    }

    /// Returns the output of a task that runs our image.
    fn log(&self, task: &str) -> String {
        let labels = format!("workflows.argoproj.io/workflow={}", self.name);
        let cluster = self.template.cluster;
        let pods = cluster.get(&["pods", "--selector", &labels]);
        let is_of_task = |pod: &&Value| {
            let node = &pod["metadata"]["annotations"]["workflows.argoproj.io/node-id"];
            *node == self.task(task)["id"]
        };
        let pod = pods["items"].as_array().unwrap().iter().find(is_of_task).unwrap();
        let pod = pod["metadata"]["name"].as_str().unwrap();
        let logs = ["--namespace", cluster.namespace, "logs", pod, "--container=main"];
        cluster.kubectl(&logs)
    }

    fn exit_code(&self, task: &str) -> i64 {
        let code = self.task(task)["outputs"]["exitCode"].as_str();
        code.and_then(|code| code.parse().ok()).expect("the task has ended")
    }

    /// Neither the MPIJob nor a pod of it is left.
    #[track_caller]
    fn expect_removed(&self) {
        let Template { cluster, name } = self.template;
        self.expect("Succeeded", &[&format!("{}.onExit", self.name)]);
        assert!(cluster.get(&["mpijob", name]).is_null());
        let pods = cluster.get(&["pods", "--selector", &Format::Argo.labels(name, "")]);
        assert!(pods.is_null() || pods["items"] == json!([]), "{pods:#}");
    }

    fn add_to(&self, case: Case, event: &str, code: i64, sentence: &str) {
        let row = Row {
            event,
            code,
            run: &self.run(),
            status: self.phase(),
            seconds: self.seconds,
            sentence,
        };
        case.write(self.template.cluster, &row);
    }
}

const PREPARATION: [&str; 5] = ["configure", "begin", "doctor", "end-doctor", "baseline"];

/// All tasks ran, and the verdict's code is that of the workflow. A second night may be slower than
/// the first on a machine that does other things.
#[track_caller]
fn expect_judged(night: &Night<'_>, codes: &[i64]) {
    night.expect("Succeeded", &PREPARATION);
    night.expect("Succeeded", &["train", "collect"]);
    let code = night.exit_code("verdict");
    assert!(codes.contains(&code), "{code}: {}", night.log("verdict"));
    assert_eq!(night.phase(), if code == 0 { "Succeeded" } else { "Failed" });
    assert_eq!(support::record(&night.run())["status"], "complete");
    assert!(night.run().join("report.html").exists());
    night.expect_removed();
}

#[test]
fn two_nights() {
    let case = Case { position: 14, title: "two nights" };
    let cluster = Cluster::open_for_workflows();
    let template = Template::apply(&cluster, "nightly", STORE, None);
    case.begin(&cluster);
    let first = template.night(1);
    expect_judged(&first, &[0]);
    assert!(first.log("baseline").contains("no baseline"));
    let verdict = first.log("verdict");
    assert!(verdict.contains("no baseline"), "{verdict}");
    first.add_to(case, "the first", 0, &sentence(&verdict, "no baseline"));

    let second = template.night(2);
    // Of one night against one night only a large change is certain.
    expect_judged(&second, &[10, 11]);
    let copies =
        support::run(&["baseline", "show", &text(&second.run().with_extension("baseline"))]);
    copies.expect(0).expect_stdout(&["|       1 |        1 |"]);
    let verdict = second.log("verdict");
    let code = second.exit_code("verdict");
    second.add_to(case, "the second", code, &sentence(&verdict, "tokens/s"));
}

/// The line with this text, without the spaces of a table.
fn sentence(log: &str, text: &str) -> String {
    let line = log.lines().find(|line| line.contains(text));
    let line = line.unwrap_or_else(|| panic!("no {text:?} in\n{log}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_night_whose_rank_exits_4() {
    let case = Case { position: 15, title: "a night whose rank exits 4" };
    let cluster = Cluster::open_for_workflows();
    let template = Template::apply(&cluster, "night-4", STORE, Some("nan@step=3,rank=1"));
    case.begin(&cluster);
    let night = template.night(1);
    assert_eq!(night.phase(), "Failed");
    night.expect("Succeeded", &PREPARATION);
    night.expect("Failed", &["train", "collect"]);
    night.expect("Omitted", &["verdict"]);
    let record = support::record(&night.run());
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("failed"), &json!(4)));
    assert!(night.run().join("report.html").exists(), "what failed is collected, too");
    night.add_to(
        case,
        "a loss that is not finite",
        4,
        &sentence(&night.log("collect"), ": failed:"),
    );
    night.expect_removed();
}

#[test]
fn a_night_whose_doctor_fails() {
    let case = Case { position: 16, title: "a night whose doctor fails" };
    let cluster = Cluster::open_for_workflows();
    let (table, require) = ("[platform]\n", "[workflow.doctor]\nrequire = [\"gdr_driver\"]\n");
    let require = format!("{require}\n{table}");
    let template = Template::apply(&cluster, "night-unfit", (table, &require), None);
    case.begin(&cluster);
    let night = template.night(1);
    assert_eq!(night.phase(), "Failed");
    night.expect("Succeeded", &["configure", "begin"]);
    night.expect("Failed", &["doctor"]);
    night.expect("Omitted", &["end-doctor", "train", "collect", "verdict"]);
    assert!(!night.run().join("record.json").exists(), "nothing was trained");
    let written = |name| std::fs::read_to_string(night.run().with_extension(name)).unwrap();
    let report = written("doctor.txt");
    assert!(written("launch.txt").contains("exit code 3"), "{}", written("launch.txt"));
    night.add_to(case, "a required check finds nothing", 3, &sentence(&report, "gdr_driver"));
    night.expect_removed();
}
