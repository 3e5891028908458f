//! `yardstick launch` in batch scripts of a real Slurm of two nodes, and Slurm's own ways to end
//! them.
//!
//! Needs root, and Debian's iproute2, munge, openssh-server, slurm-client, slurmctld and slurmd.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;

use cluster::{Cluster, NODES};
use serde_json::json;
use support::Folder;

/// Returns the arguments of a training with a save after every fifth step.
fn train<'a>(out: &'a str, steps: &'a str) -> Vec<&'a str> {
    let train = ["--", "train", "--workload", "smoke", "--steps", steps, "--threads", "1"];
    let others = ["--checkpoint-every", "5steps", "--deadline", "60s", "--out", out];
    [&train[..], &others, &["--set", "telemetry.matmul_probe=0s"]].concat()
}

#[test]
#[ignore = "starts a Slurm: needs root, munge, slurmctld and slurmd"]
fn a_batch_script_trains_on_all_nodes_and_goes_on_after_a_stop() {
    let cluster = Cluster::start();
    let [whole, stopped] = [Folder::new(), Folder::new()];
    let output = cluster.submit(&train(&whole.text(), "40")).expect(0);
    assert!(output.contains("complete on 2 ranks of 2 hosts"), "{output}");
    let record = whole.record();
    let hosts = [0, 1].map(|rank| record["ranks"][rank]["host"].clone());
    assert_eq!(hosts, NODES.map(|node| json!(node)));
    let job = cluster.submit(&train(&stopped.text(), "40"));
    job.wait_for_checkpoint(&stopped.path());
    cluster.run(&["scancel", "--batch", "--signal=TERM", "--name=it"]);
    job.expect(75);
    assert_eq!(stopped.record()["status"], "stopped");
    cluster.submit(&train(&stopped.text(), "40")).expect(0);
    assert_eq!(stopped.record()["fingerprint"], record["fingerprint"]);
}

/// Connects by ssh both to agents and to ranks: Slurm has no step but the script.
#[test]
#[ignore = "starts a Slurm: needs root, munge, slurmctld and slurmd"]
fn hosts_of_a_host_file_are_reached_by_ssh() {
    let cluster = Cluster::start();
    let folder = Folder::new();
    let hostfile = folder.sibling("hosts");
    std::fs::write(&hostfile, NODES.map(|node| format!("{node} slots=1\n")).concat()).unwrap();
    let (out, hosts) = (folder.text(), support::text(&hostfile));
    let job = cluster.submit(&[&["--hostfile", &hosts], &train(&out, "40")[..]].concat());
    job.wait_for_checkpoint(&folder.path());
    let steps = cluster.run(&["squeue", "--steps", "--noheader", "--format=%i"]).stdout;
    assert!(steps.lines().all(|step| step.ends_with(".batch")), "{steps}");
    job.expect(0);
    let record = folder.record();
    let hosts = [0, 1].map(|rank| record["ranks"][rank]["host"].clone());
    assert_eq!(hosts, NODES.map(|node| json!(node)));
}

#[test]
#[ignore = "starts a Slurm: needs root, munge, slurmctld and slurmd"]
fn a_rank_that_fails_ends_the_job_with_its_code() {
    let cluster = Cluster::start();
    let folder = Folder::new();
    let out = folder.text();
    let failing = [&train(&out, "40")[..], &["--inject", "nan@step=3,rank=1"]].concat();
    cluster.submit(&failing).expect(4);
}

#[test]
#[ignore = "starts a Slurm: needs root, munge, slurmctld and slurmd"]
fn killed_steps_and_a_cut_node_are_named() {
    let cluster = Cluster::start();
    let losses: [fn(&Cluster, &str); 2] = [Cluster::kill_steps, Cluster::cut];
    for lose in losses {
        cluster.wait_for_idle_nodes();
        let folder = Folder::new();
        let out = folder.text();
        let long = [&train(&out, "100000")[..], &["--set", "schedule.steps=100000"]].concat();
        let job = cluster.submit(&long);
        job.wait_for_checkpoint(&folder.path());
        lose(&cluster, NODES[1]);
        let output = job.expect(5);
        assert!(output.contains("node2"), "{output}");
        let record = folder.record();
        assert_eq!(record["reason"]["host"], "node2", "{}", record["reason"]);
    }
}
