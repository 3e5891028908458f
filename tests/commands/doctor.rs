//! `yardstick doctor` as a user runs it, with faults that are planted.

use std::process::Command;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;
use support::s3::S3Server;
use support::{Finished, Folder, finish, run, text, yardstick};
#[cfg(feature = "mpi")]
use support::{launch, launcher, mpirun};

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
});

/// Parses the JSON that was printed, and checks it against the schema.
#[track_caller]
fn report(finished: &Finished) -> Value {
    let report: Value = serde_json::from_str(&finished.stdout).expect(&finished.stdout);
    let wrong: Vec<_> = VALIDATOR.iter_errors(&report).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    report
}

#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

/// The worst result of a check: its status, and what was found.
#[track_caller]
fn worst<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let result = &check(report, name)["results"][0];
    (result["status"].as_str().unwrap(), result["found"].as_str().unwrap())
}

#[test]
fn a_healthy_machine_passes_with_a_table_and_with_json() {
    let folder = Folder::new();
    let out = folder.text();
    let table = run(&["doctor", "--workload", "smoke", "--out", &out]).expect(0);
    table.expect_stdout(&["check ", "memory ", "tier_shared ", "1 rank of 1 node"]);
    let report =
        report(&run(&["doctor", "--workload", "smoke", "--out", &out, "--json"]).expect(0));
    assert_eq!(check(&report, "memory")["status"], "pass", "{report:#}");
    assert!(worst(&report, "tier_shared").1.contains("GiB/s written"), "{report:#}");
    assert_eq!(check(&report, "clock")["status"], "skip");
    assert!(!std::path::Path::new(&out).exists(), "nothing is left");
}

#[test]
fn what_is_required_has_to_be_there() {
    let plain = report(&run(&["doctor", "--json"]).expect(0));
    assert_ne!(plain["status"], "skip", "that there is nothing to look at is fine");
    assert_eq!(worst(&plain, "gdr").0, "skip");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/doctor.json");
    let require = ["doctor", "--json", "--require", "gdr,shm", "--report", &text(&file)];
    let finished = run(&require).expect(3);
    let required = report(&finished);
    assert_eq!(worst(&required, "gdr").0, "fail");
    assert_eq!(std::fs::read_to_string(file).unwrap(), finished.stdout.trim_end());
    assert_eq!(worst(&required, "shm").0, "pass");
    let unknown = run(&["doctor", "--require", "shm,grd"]).expect(2);
    unknown.expect_stderr(&["--require grd: expected one of: shm, memlock,"]);
}

#[test]
fn a_limit_of_this_process_fails() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_yardstick")).args(["doctor", "--json"]);
    let report = report(&finish(command).expect(3));
    assert_eq!(worst(&report, "open_files"), ("fail", "200"));
}

/// A tier below a file, where no folder can be.
fn with_a_tier_that_cannot_be_written(variable: &str, check: &str) {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = yardstick(&["doctor", "--json"]);
    command.env(variable, text(&file.join("below")));
    let report = report(&finish(command).expect(3));
    let (status, found) = worst(&report, check);
    assert_eq!(status, "fail");
    assert!(found.contains("Not a directory"), "{found}");
}

#[test]
fn a_tier_that_cannot_be_written_fails() {
    with_a_tier_that_cannot_be_written("LOCAL_CHECKPOINT_DIR", "tier_nvme");
}

#[test]
fn a_shared_tier_that_cannot_be_written_fails() {
    with_a_tier_that_cannot_be_written("SHARED_CHECKPOINT_DIR", "tier_shared");
}

#[test]
fn what_a_killed_doctor_has_left_is_removed_after_a_day() {
    let folder = Folder::new();
    let abandoned = folder.path().join("yardstick-bench-node-1-12-1");
    std::fs::create_dir_all(abandoned.join("t000")).unwrap();
    std::fs::write(abandoned.join("t000/data"), "x").unwrap();
    let own = folder.path().join("checkpoint");
    std::fs::write(&own, "x").unwrap();
    let mut command = yardstick(&["doctor", "--json"]);
    command.env("SHARED_CHECKPOINT_DIR", folder.text());
    finish(command).expect(0);
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.collect::<Vec<_>>(), [own]);
}

#[test]
fn a_gpu_that_is_missing_fails() {
    let mut command = yardstick(&["doctor", "--json", "--device", "cuda"]);
    command.env("YARDSTICK_CUDA_PATH", "/nowhere").env("CUDA_VISIBLE_DEVICES", "");
    let report = report(&finish(command).expect(3));
    assert_eq!(worst(&report, "gpus").0, "fail", "{report:#}");
}

#[test]
fn an_object_store_has_to_honour_conditions() {
    let look = |server: &S3Server| {
        let path = format!("checkpoint.object.path={}", server.url("runs"));
        let mut command = yardstick(&["doctor", "--json", "--set", &path]);
        command.envs(server.environment());
        finish(command)
    };
    let good = report(&look(&S3Server::start()).expect(0));
    let (status, found) = worst(&good, "object_store");
    assert!(status == "pass" && found.contains("MiB/s put"), "{good:#}");
    let careless = report(&look(&S3Server::start_without_conditions()).expect(3));
    assert_eq!(worst(&careless, "object_store"), ("fail", "it ignores If-None-Match"));
    let refusing = S3Server::start();
    refusing.refuse_writes_to("");
    let refused = report(&look(&refusing).expect(3));
    assert_eq!(worst(&refused, "object_store").0, "fail", "{refused:#}");
}

/// A folder of a host with an adapter, which this container was not given.
fn host_with_an_adapter(folder: &Folder) -> String {
    let root = folder.sibling("host");
    let port = root.join("sys/class/infiniband/mlx5_0/ports/1");
    std::fs::create_dir_all(&port).unwrap();
    std::fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
    format!("telemetry.host_root={}", text(&root))
}

#[test]
fn an_adapter_that_is_not_in_the_container_fails_where_it_is_required() {
    let folder = Folder::new();
    let root = host_with_an_adapter(&folder);
    run(&["doctor", "--set", &root]).expect(0).expect_stdout(&["none in /dev/infiniband"]);
    let finished = run(&["doctor", "--set", &root, "--require", "rdma_ports"]).expect(3);
    finished.expect_stdout(&["none in /dev/infiniband", "\nto do: rdma_ports: check cables"]);
}

#[cfg(feature = "mpi")]
#[test]
fn a_small_dev_shm_fails() {
    let script = "mount -t tmpfs -o size=6m none /dev/shm && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command
        .args([&launcher::program(), "-np", "2"])
        .arg(env!("CARGO_BIN_EXE_yardstick"))
        .args(["doctor", "--json"]);
    launcher::set_environment(&mut command);
    let report = report(&finish(command).expect(3));
    assert_eq!(worst(&report, "shm"), ("fail", "6 MiB"));
    let shm = &check(&report, "shm")["results"][0];
    assert_eq!(shm["expected"], "at least 8 MiB for 2 ranks");
}

/// Two ranks, each on a node of its own by its name; `$RANK` is the rank.
#[cfg(feature = "mpi")]
fn two_nodes(arguments: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_yardstick");
    let rank = "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; export RANK; ";
    let inner = format!("hostname node-$RANK; exec {program} doctor {arguments}");
    let script = format!("{rank} exec unshare --map-root-user --uts sh -c '{inner}'");
    let mut command = launch(2, "sh");
    command.args(["-c", &script]);
    command
}

#[cfg(feature = "mpi")]
#[test]
fn nodes_are_compared_and_those_that_differ_are_named() {
    let folder = Folder::new();
    let shared = folder.sibling("shared");
    std::fs::create_dir_all(&shared).unwrap();
    let out = text(&shared.join("run"));
    let healthy = report(&finish(two_nodes(&format!("--json --out {out}"))).expect(0));
    assert!(worst(&healthy, "tier_shared").1.contains("GiB/s written"), "{healthy:#}");
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0, "nothing is left");
    assert_eq!(healthy["hosts"], serde_json::json!(["node-0", "node-1"]));
    assert_eq!(healthy["nodes"], 2);
    assert_eq!(check(&healthy, "versions")["status"], "pass");
    assert_eq!(worst(&healthy, "nodes"), ("pass", "2 nodes are alike"));
    let (status, found) = worst(&healthy, "clock");
    assert!(status == "pass" && found.ends_with(" ms apart"), "{healthy:#}");
    assert!(worst(&healthy, "links").1.contains("GB/s"), "{healthy:#}");

    let root = host_with_an_adapter(&folder);
    let of_one = format!("--require rdma_ports $([ $RANK = 1 ] && echo --set {root})");
    let broken = finish(two_nodes(&of_one)).expect(3);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = broken.stdout.lines().map(words).collect();
    let expected = [
        "rdma_ports FAIL rank 1 (node-1) the node has RDMA adapters, but none in /dev/infiniband \
         a pass, by --require",
        "rdma_ports FAIL rank 0 (node-0) no RDMA adapter a pass, by --require",
    ];
    assert!(expected.iter().all(|line| lines.contains(&(*line).to_owned())), "{lines:#?}");
    let shm = lines.iter().filter(|line| line.starts_with("shm ")).count();
    assert_eq!(shm, 1, "what is the same is one line: {lines:#?}");
}

/// One rank reads a file which never ends.
#[cfg(feature = "mpi")]
#[test]
fn a_rank_that_does_not_answer_ends_the_others_with_5() {
    let folder = Folder::new();
    let root = folder.sibling("host");
    let mode = root.join("sys/kernel/mm/transparent_hugepage");
    std::fs::create_dir_all(&mode).unwrap();
    let fifo = mode.join("enabled");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let root = text(&root);
    let of_one = format!("$([ $RANK = 1 ] && echo --set telemetry.host_root={root}) --deadline 2s");
    finish(two_nodes(&of_one)).expect(5);
}

#[cfg(feature = "mpi")]
#[test]
fn ranks_of_a_node_find_the_same_once() {
    let report = report(&finish(mpirun(2, &["doctor", "--json"])).expect(0));
    assert_eq!(check(&report, "shm")["results"][0]["ranks"], serde_json::json!([0]));
    assert_eq!(check(&report, "open_files")["results"][0]["ranks"], serde_json::json!([0, 1]));
    assert_eq!(worst(&report, "versions").0, "pass");
}

#[cfg(feature = "mpi")]
#[test]
fn a_launch_of_it_exits_as_it_does() {
    let mut command = yardstick(&["launch", "--ranks-per-node", "2", "--"]);
    command.args(["doctor", "--json", "--require", "gdr"]);
    launcher::set_environment(&mut command);
    let report = report(&finish(command).expect(3));
    assert_eq!(report["hosts"].as_array().unwrap().len(), 2);
}
