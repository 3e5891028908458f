//! Tests of what is refused, and of objects that no job in `k8s/jobs` has: those jobs are compared
//! with what is rendered (`tests/manifests/examples.rs`).

use std::path::Path;

use serde_json::Value;

use ::k8s::{Error, Format, Job, Result, Trainer, Workload, parse};
use record::benchmark_file::Frozen;

use super::own_trainer::{Loaded, OwnTrainer};
use trainer::config::Config;
use trainer::failure::Failure;
use trainer::plan::{JobShape, RankPlan};

/// Minimal benchmark file.
const PLAIN: &str = r#"
[workflow]
images = { cpu = "yardstick:1", cuda = "yardstick-cuda:1" }
[workflow.storage]
[platform]
[workload]
name = "job"
nodes = 2
ranks_per_node = 1
workload = "smoke"
"#;

/// Returns `PLAIN` with lines added below the headers of tables, as in `[platform]`.
fn with(added: &[(&str, &str)]) -> String {
    let mut text = PLAIN.to_owned();
    for (table, line) in added {
        text = text.replace(&format!("{table}\n"), &format!("{table}\n{line}\n"));
    }
    text
}

/// Trainer that loads the preset; flags are tested with the command line.
struct WithoutFlags;

impl Trainer for WithoutFlags {
    fn is_preset(&self, name: &str) -> bool {
        OwnTrainer.is_preset(name)
    }

    fn load(&self, arguments: &[String]) -> std::result::Result<Box<dyn Workload>, String> {
        let after = |flag: &str| {
            let pairs = arguments.windows(2).filter(|pair| pair[0] == flag);
            pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
        };
        let mut overrides = after("--set");
        overrides.extend(after("--device").iter().map(|device| format!("run.device={device}")));
        let config = Config::load(&after("--workload")[0], &overrides);
        let config = config.map_err(|failure| failure.to_string())?;
        config.refuse_secrets().map_err(|failure| failure.to_string())?;
        Ok(Box::new(Loaded(config)))
    }

    fn require_checks(&self, names: &[String]) -> std::result::Result<(), String> {
        OwnTrainer.require_checks(names)
    }
}

/// Returns an error as the command line prints it.
fn said(error: Error) -> String {
    Failure::new(error.exit_code(), error).to_string()
}

fn jobs(text: &str) -> Result<Vec<Job>> {
    jobs_as(Format::Mpijob, text)
}

fn jobs_as(format: Format, text: &str) -> Result<Vec<Job>> {
    let benchmarks = parse(text, "benchmark.toml", &OwnTrainer)?.into_iter();
    benchmarks.map(|it| Job::new(it, Path::new("."), format, &WithoutFlags)).collect()
}

fn job(text: &str) -> Result<Job> {
    Ok(jobs(text)?.remove(0))
}

/// Returns the objects of a job.
fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&job(text).unwrap().to_yaml().unwrap()).unwrap()
}

/// Returns the MPIJob of a job.
fn mpi_job(text: &str) -> Value {
    objects(text).pop().unwrap()
}

fn pod_of<'a>(job: &'a Value, role: &str) -> &'a Value {
    &job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
}

#[test]
fn a_frozen_benchmark_renders_the_same_job() {
    let text = with(&[("[platform]", "cpu = \"2\""), ("[workload]", "set = [\"run.threads=1\"]")]);
    let yaml = job(&text).unwrap().to_yaml().unwrap();
    let frozen = objects(&text)[0]["data"]["benchmark.toml"].as_str().unwrap().to_owned();
    assert_eq!(job(&frozen).unwrap().to_yaml().unwrap(), yaml);
    let other = text.replace("run.threads=1", "run.threads=2");
    assert_ne!(job(&other).unwrap().id(), job(&text).unwrap().id());
}

#[test]
fn unknown_keys_are_named_with_their_line() {
    for (table, line) in [
        ("[workflow]", "imagez = 1"),
        ("[workflow.storage]", "nvme = { host_pth = \"/a\" }"),
        ("[platform]", "host_netwrok = true"),
        ("[platform]", "rdma = { resource = \"rdma/ib\", cnt = 1 }"),
        ("[workload]", "step = 1"),
    ] {
        let failure =
            parse(&with(&[(table, line)]), "a.toml", &OwnTrainer).map_err(said).unwrap_err();
        let key = line.split(['=', '{', ',']).map(str::trim).find(|key| failure.contains(*key));
        assert!(failure.contains("a.toml, line ") && failure.contains("unknown"), "{failure}");
        assert!(key.is_some(), "{line}: {failure}");
    }
    let failure = parse(&PLAIN.replace("nodes = 2", "nodes = true"), "a.toml", &OwnTrainer)
        .map_err(said)
        .unwrap_err();
    let expected = "a.toml, line 8: expected a whole number from 0 to 4294967295, found `true`";
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn impossible_values_are_named() {
    for (from, to, key) in [
        ("nodes = 2", "nodes = 0", "workload.nodes"),
        ("nodes = 2", "nodes = 4294967295", "workload.nodes"),
        ("ranks_per_node = 1", "ranks_per_node = 0", "workload.ranks_per_node"),
        ("ranks_per_node = 1", "", "workload.ranks_per_node"),
        ("ranks_per_node = 1", "ranks_per_node = 1\ngpus_per_node = 1", "workload.ranks_per_node"),
        ("nodes = 2", "nodes = 2\ntime_limit = \"1500ms\"", "workload.time_limit"),
        ("cpu = \"yardstick:1\", ", "", "workflow.images.cpu"),
        (
            "[workflow]",
            "[workflow]\nnamespace = \"H100\"",
            "workflow.namespace = H100: expected lower",
        ),
        (
            "[workflow]",
            "[workflow]\nservice_account = \"H100\"",
            "account = H100: expected the name",
        ),
        (
            "[platform]",
            "[workflow.doctor]\nrequire = [\"grd\"]\n[platform]",
            "workflow.doctor.require",
        ),
        ("[platform]", "[platform]\nmemory = \"4GB\"", "platform.memory"),
        ("[platform]", "[platform]\nrdma = { resource = \"rdma/ib\", count = 0 }", "rdma.count"),
        ("[platform]", "[platform]\nenvironment = { POD_NAME = \"x\" }", "platform.environment"),
        (
            "[platform]",
            "[platform]\nenvironment = { HTTPS_PROXY = \"http://u:PASS@h\" }",
            "platform.environment.HTTPS_PROXY",
        ),
        ("[platform]", "[platform]\nhost_network = true", "platform.pod_security"),
        ("[platform]", "[platform]\nroot = true", "platform.pod_security"),
        ("[platform]", "[platform]\nhost_folders = { \"/a\" = \"/b\" }", "platform.pod_security"),
        ("[platform]", "[platform]\nhost_folders = { \"/a\" = \"b\" }", "host_folders./a"),
        ("[platform]", "[platform]\nhost_folders = { \"/dev\" = \"/b\" }", "apart from /dev/shm"),
        ("[platform]", "[platform]\nhost_folders = { \"/usr/local\" = \"/b\" }", "/usr/local/bin"),
        ("[platform]", "[platform]\nhost_folders = { \"/a\" = \"/b\", \"/a/c\" = \"/d\" }", "/a/c"),
        ("[platform]", "[platform]\nannotations = { \"a b\" = \"c\" }", "platform.annotations"),
        ("[platform]", "[workflow.storage.nvme]\nhost_path = \"/a\"\n[platform]", "pod_security"),
        ("[platform]", "[workflow.reporting]\nmetrics_port = 2222\n[platform]", "metrics_port"),
        ("[platform]", "[workflow.reporting]\nmetrics_linger = \"90s\"\n[platform]", "linger"),
        ("[platform]", "[platform]\nhugepages_2mi = \"1Gi\"", "platform.hugepages_2mi"),
        ("[platform]", "[platform]\ngpu_resource = \"gpu\"", "platform.gpu_resource"),
        ("[platform]", "[platform]\nrdma = { resource = \"ib\", count = 1 }", "rdma.resource"),
    ] {
        let failure = job(&PLAIN.replace(from, to)).map_err(said).unwrap_err();
        assert!(failure.contains(key), "{to}: {failure}");
        assert!(failure.starts_with("benchmark.toml: "), "{to}: {failure}");
        assert!(!failure.contains("PASS"), "{failure}");
    }
}

#[test]
fn a_job_that_train_would_refuse_is_refused() {
    for (line, part) in [
        ("set = [\"batch.micro_sequences=3\"]", "batch.global_sequences"),
        ("set = [\"run.thread=1\"]", "thread"),
        ("set = [\"parallel.data=3\"]", "expected a product of 2"),
        ("set = [\"run.device=cuda\"]", "gpus_per_node"),
        ("set = [\"run.init_from=llama\"]", "absolute path"),
        ("set = [\"telemetry.otlp=http://u:PASS@h\"]", "OTEL_EXPORTER_OTLP_HEADERS from a Secret"),
        ("set = [\"telemetry.records=s3://u:PASS@b/c\"]", "telemetry.records"),
    ] {
        let failure = job(&with(&[("[workload]", line)])).map_err(said).unwrap_err();
        assert!(failure.contains(part), "{line}: {failure}");
        assert!(!failure.contains("PASS"), "{failure}");
    }
    let failure = job(&PLAIN.replace("smoke", "smok")).map_err(said).unwrap_err();
    assert!(failure.contains("neither a preset nor"), "{failure}");
    let failure = job(&PLAIN.replace("nodes = 2", "nodes = 3")).map_err(said).unwrap_err();
    assert!(failure.contains("3 ranks"), "16 sequences on 3 nodes: {failure}");
}

/// Checks llama3-8b on 16 ranks, where the file gives their memory.
#[test]
fn a_job_that_cannot_fit_its_memory_is_refused() {
    let large = PLAIN
        .replace("ranks_per_node = 1", "gpus_per_node = 8")
        .replace("workload = \"smoke\"", "workload = \"llama3-8b\"");
    let on = |platform: &str| {
        let text = large.replace("[platform]\n", &format!("[platform]\n{platform}\n"));
        job(&text).map_err(said).err()
    };
    let of_product = "node_labels = { \"nvidia.com/gpu.product\" = \"NVIDIA-H100-80GB-HBM3\" }";
    let of_gke = "node_labels = { \"cloud.google.com/gke-accelerator\" = \"nvidia-h100-80gb\" }";
    let place = "workload.workload does not fit: the memory of a worker's GPU does not suffice: ";
    for platform in ["gpu_memory = \"80Gi\"", of_product, of_gke] {
        let failure = on(platform).unwrap();
        let key = platform.split(' ').next().unwrap();
        assert!(failure.contains(&format!("job: platform.{key}: {place}")), "{failure}");
        for part in ["79.00 GiB are available", "it fits with"] {
            assert!(failure.contains(part), "{platform}: {failure}");
        }
    }
    for platform in ["", "gpu_memory = \"192Gi\"", "memory = \"1Ti\""] {
        assert_eq!(on(platform), None, "{platform}");
    }
    let failure = on("memory = \"128Mi\"\ngpu_memory = \"192Gi\"").unwrap();
    let place = "platform.memory: workload.workload does not fit: a worker has no room for 8 ranks";
    assert!(failure.contains(place), "{failure}");
}

/// Accounts for the activations of candle, which are an estimate that may be too high.
#[test]
fn a_job_that_may_fit_by_the_tolerance_of_its_plan_is_not_refused() {
    let config = Config::load("smoke", &["run.engine=candle".to_owned()]).unwrap();
    let shape = JobShape { world: 2, local: 1, threads: 1, shares_memory: true };
    let plan = RankPlan::new(&config, shape, None).unwrap();
    let tolerance = plan.tolerance_bytes();
    assert!(tolerance > 0);
    let is_refused = |bytes: u64| {
        let memory = format!("memory = \"{bytes}\"");
        let engine = "set = [\"run.engine=candle\"]";
        job(&with(&[("[platform]", &memory), ("[workload]", engine)])).is_err()
    };
    assert!(!is_refused(plan.total_bytes - tolerance));
    assert!(is_refused(plan.total_bytes - tolerance - 1));
}

/// Keeps quantities that YAML would read as numbers, which the operator's schema refuses.
#[test]
fn a_quantity_stays_text() {
    let quantities = [("cpu", ".5"), ("memory", "129e9"), ("ephemeral_storage", "5.")];
    let lines = quantities.map(|(key, value)| format!("{key} = \"{value}\""));
    let found = mpi_job(&with(&[("[platform]", &lines.join("\n"))]));
    let limits = &pod_of(&found, "Worker")["containers"][0]["resources"]["limits"];
    for (key, value) in quantities {
        assert_eq!(limits[key.replace('_', "-")], value);
    }
}

#[test]
fn a_workload_file_goes_with_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let workload = Config::load("smoke", &[]).unwrap().to_toml();
    std::fs::write(folder.path().join("mine.toml"), &workload).unwrap();
    let text = PLAIN.replace("workload = \"smoke\"", "workload = \"mine.toml\"");
    let benchmark = parse(&text, "benchmark.toml", &OwnTrainer).unwrap().remove(0);
    let job = Job::new(benchmark, folder.path(), Format::Mpijob, &WithoutFlags).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&job.to_yaml().unwrap()).unwrap();
    assert_eq!(all[0]["data"]["mine.toml"].as_str(), Some(workload.as_str()));
    let arguments = &pod_of(all.last().unwrap(), "Launcher")["containers"][0]["args"];
    let has = |text: &str| arguments.as_array().unwrap().iter().any(|found| found == text);
    assert!(has("/etc/yardstick/mine.toml"), "{arguments}");
    assert_eq!(all[0]["metadata"]["labels"]["yardstick/workload-id"], {
        Config::load("smoke", &[]).unwrap().workload.id(None)
    });
}

/// Matrix of two workloads, two settings and two numbers of nodes.
const MATRIX: &str = r#"
[matrix]
workload = ["smoke", "llama-smoke"]
nodes = [1, 2]
[matrix.settings]
sharded = ["parallel.sharded=optimizer"]
plain = []
"#;

#[test]
fn a_matrix_is_a_job_for_each_combination_with_stable_names_and_ids() {
    let found = jobs(&format!("{PLAIN}{MATRIX}")).unwrap();
    let names: Vec<_> = found.iter().map(Job::name).collect();
    assert_eq!(names.len(), 8);
    assert_eq!(names[0], "job-smoke-plain-n1");
    assert_eq!(names[7], "job-llama-smoke-sharded-n2");
    let ids: std::collections::BTreeSet<_> = found.iter().map(Job::id).collect();
    assert_eq!(ids.len(), 8);
    // A single job of the matrix, rendered alone, is the same.
    let alone =
        PLAIN.replace("nodes = 2", "nodes = 1").replace("\"job\"", "\"job-smoke-plain-n1\"");
    assert_eq!(job(&alone).unwrap().to_yaml().unwrap(), found[0].to_yaml().unwrap());
}

#[test]
fn a_matrix_with_a_job_that_cannot_run_names_it() {
    let wrong = MATRIX.replace("[1, 2]", "[1, 3]");
    let failure = jobs(&format!("{PLAIN}{wrong}")).map_err(said).unwrap_err();
    assert!(failure.contains("job-smoke-plain-n3") && failure.contains("3 ranks"), "{failure}");
    let twice = MATRIX.replace("[1, 2]", "[1, 1]");
    let failure = jobs(&format!("{PLAIN}{twice}")).map_err(said).unwrap_err();
    assert!(failure.contains("each job once"), "{failure}");
}

#[test]
fn the_example_of_the_documentation_is_a_job() {
    let page = include_str!("../../../../docs/benchmark-file.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(job(example).unwrap().name(), "nightly");
}

#[test]
fn a_name_that_the_controller_cannot_make_names_of_is_refused() {
    for (format, length) in [(Format::Mpijob, 54), (Format::Trainjob, 44)] {
        let named = |name: &str| PLAIN.replace("\"job\"", &format!("{name:?}"));
        assert!(jobs_as(format, &named(&"x".repeat(length))).is_ok());
        for name in [&"x".repeat(length + 1), "1job", "Job", "a.b", "a-"] {
            let failure = jobs_as(format, &named(name)).map_err(said).unwrap_err();
            let expected = format!("workload.name = {name}: expected lower-case letters, digits ");
            assert!(failure.contains(&expected), "{failure}");
        }
    }
}

#[test]
fn what_the_trainer_cannot_do_is_refused_of_a_train_job() {
    let root = "pod_security = \"privileged\"\nroot = true";
    for (table, line, key) in [
        ("[platform]", "gang = true", "platform.gang"),
        ("[platform]", root, "platform.root"),
        ("[workload]", "spares = 1", "workload.spares"),
    ] {
        let text = with(&[(table, line)]);
        let failure = jobs_as(Format::Trainjob, &text).map_err(said).unwrap_err();
        assert!(failure.contains(key) && failure.contains("--format mpijob"), "{failure}");
        assert!(jobs(&text).is_ok(), "{key}");
    }
}

#[test]
fn an_edited_benchmark_has_files_of_its_own() {
    let found = |text: &str| {
        let all = objects(text);
        let name = all[0]["metadata"]["name"].as_str().unwrap().to_owned();
        let volumes = pod_of(all.last().unwrap(), "Worker")["volumes"].as_array().unwrap().iter();
        let mut mounted = volumes.filter_map(|volume| volume["configMap"]["name"].as_str());
        assert_eq!(mounted.next(), Some(name.as_str()));
        name
    };
    let edited = with(&[("[workload]", "steps = 3")]);
    assert_ne!(found(PLAIN), found(&edited));
}

/// Benchmark file with every key.
const EVERYTHING: &str = r#"
[workflow]
namespace = "a"
service_account = "a"
images = { cpu = "a:1", cuda = "a:1", pull_policy = "Never", pull_secret = "a" }
[workflow.storage]
results = "a"
shared = "a"
nvme = { claim = { storage_class = "a", size = "1Gi" } }
object = "s3://a/b"
object_secret = "a"
[workflow.reporting]
metrics_port = 9402
metrics_linger = "1s"
otlp = "http://a:4318"
records = "s3://a/c"
[workflow.doctor]
skip = false
require = ["shm"]
[platform]
pod_security = "privileged"
host_network = true
root = true
gpu_resource = "a/gpu"
rdma = { resource = "a/rdma", count = 1 }
cpu = "1"
memory = "1Gi"
ephemeral_storage = "1Gi"
hugepages_2mi = "1Gi"
shared_memory = "1Gi"
one_pod_per_node = true
rack = { topology_key = "a", required = true }
zone = "a"
node_labels = { a = "b" }
tolerations = [{ key = "a", value = "b", effect = "NoSchedule" }]
priority_class = "a"
runtime_class = "a"
kueue_queue = "a"
gpu_memory = "80Gi"
gang = true
environment = { A = "b" }
annotations = { a = "b" }
host_folders = { "/a" = "/b" }
[workload]
name = "job"
nodes = 2
gpus_per_node = 1
workload = "smoke"
set = ["run.threads=1"]
steps = 1
eval_every = 1
target_loss = 1.0
checkpoint_every = "1steps"
restarts = 1
spares = 1
wait = "1m"
grace = "1m"
time_limit = "1h"
[matrix]
workload = ["smoke"]
nodes = [1]
[matrix.settings]
plain = []
"#;

/// Collects keys of tables in a value, except those that a user makes up.
fn keys(table: &toml::Table, found: &mut Vec<String>) {
    for (key, value) in table {
        found.push(key.clone());
        let named_by_users =
            ["node_labels", "environment", "annotations", "host_folders", "settings"];
        let is_users = named_by_users.contains(&key.as_str());
        value.as_table().filter(|_| !is_users).into_iter().for_each(|table| keys(table, found));
    }
}

#[test]
fn the_documentation_has_every_key() {
    assert_eq!(jobs(EVERYTHING).unwrap().len(), 1);
    let page = include_str!("../../../../docs/benchmark-file.md");
    let mut found = Vec::new();
    keys(&EVERYTHING.parse().unwrap(), &mut found);
    let words: Vec<_> = page.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let missing: Vec<_> = found.iter().filter(|key| !words.contains(&key.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

/// Returns the spec of the workflow of a benchmark file.
fn workflow(text: &str) -> Value {
    let limited = match text.contains("time_limit") {
        true => text.to_owned(),
        false => text.replace("[workload]\n", "[workload]\ntime_limit = \"1h\"\n"),
    };
    let yaml = jobs_as(Format::Argo, &limited).unwrap()[0].to_yaml().unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    all.last().unwrap()["spec"].clone()
}

fn template<'a>(spec: &'a Value, name: &str) -> Option<&'a Value> {
    spec["templates"].as_array().unwrap().iter().find(|template| template["name"] == name)
}

/// Returns the object of a template that creates or removes one.
fn manifest(spec: &Value, name: &str) -> Value {
    let template = template(spec, name).unwrap();
    serde_saphyr::from_str(template["resource"]["manifest"].as_str().unwrap()).unwrap()
}

/// Returns the command line of a template's container, or of its job's launcher.
fn line(spec: &Value, name: &str) -> String {
    let container = match template(spec, name).unwrap().get("container") {
        Some(container) => container.clone(),
        None => pod_of(&manifest(spec, name), "Launcher")["containers"][0].clone(),
    };
    let words = container["args"].as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

/// Returns names and conditions of the tasks of a workflow.
fn tasks(spec: &Value) -> Vec<String> {
    let tasks = template(spec, "benchmark").unwrap()["dag"]["tasks"].as_array().unwrap().iter();
    let text = |task: &Value| {
        let depends = task["depends"].as_str().unwrap_or("");
        format!("{}: {depends}", task["name"].as_str().unwrap())
    };
    tasks.map(text).collect()
}

const RECORDS: (&str, &str) =
    ("[platform]", "[workflow.reporting]\nrecords = \"s3://a/b\"\n[platform]");

#[test]
fn a_workflow_checks_nodes_trains_collects_and_judges() {
    let text = with(&[("[workload]", "time_limit = \"1h\"")]).replace(RECORDS.0, RECORDS.1);
    let text = text.replace("[platform]", "[workflow.doctor]\nrequire = [\"shm\"]\n[platform]");
    let compare = "s3://a/b\"\ncompare = [\"--gate\", \"step_ms\"]\n";
    let text = text.replace("s3://a/b\"\n", compare);
    let spec = workflow(&text);
    let expected = [
        "configure: ",
        "begin: configure.Succeeded",
        "doctor: begin.Succeeded",
        "end-doctor: doctor.Succeeded",
        "baseline: end-doctor.Succeeded",
        "train: baseline.Succeeded",
        "collect: train.Succeeded || train.Failed || train.Errored",
        "verdict: train.Succeeded && collect.Succeeded",
    ];
    assert_eq!(tasks(&spec), expected);
    let out = "/results/job/{{workflow.name}}";
    let id = jobs(&text).unwrap()[0].workload_id().unwrap();
    let collect = "k8s collect --benchmark /etc/yardstick/benchmark.toml";
    let report = format!("--report {out}.doctor.txt");
    for (name, expected) in [
        ("configure", format!("--ranks 2 --local-ranks 1 --expect-id {id}")),
        ("doctor", format!("-- doctor --workload smoke --out {out} {report} --require shm")),
        (
            "baseline",
            format!(
                "baseline show --allow-none --only {id} --save {out}.baseline --newest 30 s3://a/b"
            ),
        ),
        ("train", format!("-- train --workload smoke --out {out}")),
        ("collect", format!("{collect} --html {out}/report.html {out}")),
        ("verdict", format!("compare --gate step_ms {out}.baseline {out}")),
    ] {
        let found = line(&spec, name);
        assert!(found.contains(&expected), "{name}: {found}");
    }
    assert_eq!(spec["activeDeadlineSeconds"], 2 * 3600 + 1800);
}

#[test]
fn tasks_that_run_our_image_have_no_token_and_not_the_identity_of_the_workflow() {
    let spec = workflow(&PLAIN.replace(RECORDS.0, RECORDS.1));
    for name in ["configure", "baseline", "collect", "verdict"] {
        let task = template(&spec, name).unwrap();
        assert_eq!(task["automountServiceAccountToken"], false, "{name}");
        assert_ne!(task["serviceAccountName"], spec["serviceAccountName"], "{name}");
        assert_eq!(task["executor"]["serviceAccountName"], "yardstick-executor", "{name}");
    }
}

#[test]
fn a_workflow_has_a_limit_and_the_secret_of_the_registry() {
    let unlimited = jobs_as(Format::Argo, PLAIN).unwrap()[0].to_yaml().map_err(said).unwrap_err();
    assert!(unlimited.contains("workload.time_limit"), "{unlimited}");
    let secret = "images = { pull_secret = \"registry\", ";
    let spec = workflow(&PLAIN.replace("images = { ", secret));
    assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
}

#[test]
fn a_workflow_needs_neither_doctor_nor_store() {
    let text = PLAIN.replace("[platform]", "[workflow.doctor]\nskip = true\n[platform]");
    let spec = workflow(&text);
    let found = tasks(&spec);
    assert_eq!(found[1..3], ["begin: configure.Succeeded", "train: begin.Succeeded"]);
    assert!(template(&spec, "doctor").is_none() && template(&spec, "baseline").is_none());
    assert!(line(&spec, "verdict").starts_with("report "));
}

#[test]
fn values_reach_ranks_as_they_are_written() {
    let values = ["yes", "0644", "1e3", "12:30", "~", "a: b # c", "two\nlines\n", "$(POD_NAME)"];
    let options = values.iter().enumerate();
    let lines: Vec<_> = options.map(|(i, value)| format!("V{i} = {value:?}")).collect();
    let text = PLAIN.replace(
        "[workload]",
        &format!("[platform.environment]\n{}\n[workload]", lines.join("\n")),
    );
    let found = mpi_job(&text);
    let variables = pod_of(&found, "Worker")["containers"][0]["env"].as_array().unwrap();
    for (i, value) in values.iter().enumerate() {
        let name = format!("V{i}");
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        // Kubernetes expands the value like this.
        assert_eq!(variable["value"].as_str().unwrap().replace("$$(", "$("), *value);
        assert!(!variable["value"].as_str().unwrap().starts_with("$("), "it would be expanded");
    }
}

#[test]
fn ranks_know_the_name_and_the_id_of_their_job() {
    let folder = tempfile::tempdir().unwrap();
    let preset = models::presets::text("smoke").unwrap();
    std::fs::write(folder.path().join("own.toml"), preset).unwrap();
    let own = PLAIN.replace("workload = \"smoke\"", "workload = \"own.toml\"");
    for text in [PLAIN, &own] {
        let benchmark = parse(text, "benchmark.toml", &OwnTrainer).unwrap().remove(0);
        let job = Job::new(benchmark, folder.path(), Format::Mpijob, &WithoutFlags).unwrap();
        assert_eq!(job.workload_inside() == "smoke", text == PLAIN);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&job.to_yaml().unwrap()).unwrap();
        let mounted = tempfile::tempdir().unwrap();
        for (name, text) in objects[0]["data"].as_object().unwrap() {
            std::fs::write(mounted.path().join(name), text.as_str().unwrap()).unwrap();
        }
        let frozen = Frozen::read(&mounted.path().join("benchmark.toml")).unwrap();
        let known = frozen.job.unwrap();
        assert_eq!((&*known.name, &*known.id), (job.name(), job.id()), "{text}");
    }
}
