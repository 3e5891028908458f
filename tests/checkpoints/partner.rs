//! Jobs whose nodes keep copies of each other's files, end to end: a lost disk, without any farther
//! tier.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Finished, Folder, RunResult, finish, mpirun, mpirun_on_nodes};

/// Two shard groups on two nodes, to which ranks are dealt in turn. They share the weights in a
/// group, and divide moments and master weights among all ranks.
const HYBRID: Layout = Layout {
    node_of_rank: &[0, 1, 0, 1],
    settings: &[
        "parallel.data=2",
        "parallel.shard=2",
        "parallel.sharded=weights",
        "batch.global_sequences=4",
    ],
};

/// Three replicas, each on a node. A rank's part of the state takes several rounds of the smallest
/// staging memory.
const THREE_NODES: Layout = Layout {
    node_of_rank: &[0, 1, 2],
    settings: &[
        "parallel.sharded=optimizer",
        "batch.global_sequences=3",
        "model.layers=3",
        "model.width=256",
        "checkpoint.staging_bytes=0B",
        "checkpoint.background=false",
    ],
};

/// Nodes of the ranks, and what they share.
#[derive(Clone, Copy)]
struct Layout {
    node_of_rank: &'static [usize],
    settings: &'static [&'static str],
}

/// A job, and the faults of its attempts.
struct Job {
    folder: Folder,
    layout: Layout,
}

impl Job {
    fn new(layout: Layout) -> Self {
        Self { folder: Folder::new(), layout }
    }

    fn disk(&self, node: usize) -> PathBuf {
        self.folder.sibling(&format!("disk{node}"))
    }

    /// Trains with a save every four steps, on the disks of nodes alone.
    fn train(&self, steps: &str, flags: &[&str]) -> Finished {
        let out = self.folder.text();
        let mut arguments = vec!["train", "--out", &out, "--steps", steps, "--threads", "1"];
        arguments.extend(["--checkpoint-every", "4steps"]);
        let settings = [
            "checkpoint.shared.path=none",
            "checkpoint.nvme.partner=true",
            "batch.micro_sequences=1",
            support::SEVERAL_BUCKETS,
        ];
        for setting in [&settings[..], self.layout.settings].concat() {
            arguments.extend(["--set", setting]);
        }
        arguments.extend(flags);
        finish(mpirun_on_nodes(self.layout.node_of_rank, |node| self.disk(node), &arguments))
    }

    fn undisturbed(layout: Layout) -> RunResult {
        let job = Self::new(layout);
        job.train("12", &[]).expect(0);
        job.folder.result()
    }

    /// The manifest of the checkpoint of step 8 on a node.
    fn manifest_of_step_8(&self, node: usize) -> PathBuf {
        let run = fs::read_dir(self.disk(node)).unwrap().next().unwrap().unwrap().path();
        let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path());
        let is_of_step =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("s000000008");
        names.into_iter().find(is_of_step).unwrap().join("MANIFEST.json")
    }

    /// Removes the disk of a node, and continues.
    fn lose(&self, node: usize, resumes_after: u64) {
        fs::remove_dir_all(self.disk(node)).unwrap();
        self.train("12", &[]).expect(0);
        let record = self.folder.record();
        let attempt = record["attempts"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(attempt["resumed_after_step"], resumes_after, "{attempt:#}");
        let source = &attempt["recovery"]["sources"][0];
        assert_eq!(source["tier"], "nvme");
        assert!(source["from_peers_bytes"].as_u64().unwrap() > 0, "{source}");
        assert_eq!(record["tiers"].as_array().unwrap().len(), 1);
        assert_eq!(record["tiers"][0]["has_partner_copies"], json!(true));
        let anomalies = record["anomalies"].as_array().unwrap();
        let is_of_pods = |anomaly: &Value| {
            anomaly["text"].as_str().unwrap().contains("nodes are pods that share it")
        };
        assert!(anomalies.iter().any(is_of_pods), "hosts of one kernel: {anomalies:?}");
    }
}

#[test]
fn a_lost_disk_of_a_hybrid_layout_is_restored_from_the_other_node() {
    let expected = Job::undisturbed(HYBRID);
    for node in [0, 1] {
        let job = Job::new(HYBRID);
        job.train("8", &[]).expect(0);
        job.lose(node, 8);
        assert_eq!(job.folder.result(), expected, "without the disk of node {node}");
        let record = job.folder.record();
        let places = record["ranks"].as_array().unwrap().iter().map(|rank| &rank["mesh"]);
        let expected = [[0, 0], [1, 0], [0, 1], [1, 1]];
        let expected = expected.map(|[data, shard]| json!({ "data": data, "shard": shard }));
        assert!(places.eq(&expected), "a shard group is on one node: {record:#}");
    }
}

/// The save of step 8 is not committed anywhere, whatever is copied already.
#[test]
fn a_rank_killed_while_it_copies_loses_no_earlier_commit() {
    let expected = Job::undisturbed(HYBRID);
    for failpoint in ["mid-partner-copy", "partner-copy-before-vote"] {
        let job = Job::new(HYBRID);
        let fault = format!("kill@step=8,rank=3,failpoint={failpoint}");
        // Saves that training waits for: step 8 is saved, however slow step 4's copies were.
        let flags = ["--set", "checkpoint.background=false", "--inject", &fault];
        assert_ne!(job.train("12", &flags).code, 0, "{fault}");
        job.lose(1, 4);
        assert_eq!(job.folder.result(), expected, "{fault}");
    }
}

/// Between two rounds, and then once more after a commit that is on one node only by half: whatever
/// an attempt resumes from is still there when another node is lost after it.
#[test]
fn of_three_nodes_any_may_be_lost_after_a_kill() {
    let expected = Job::undisturbed(THREE_NODES);
    let job = Job::new(THREE_NODES);
    let fault = "kill@step=8,rank=1,failpoint=mid-partner-copy";
    // Step 8 is saved, however slow step 4's copies were.
    let flags = ["--set", "checkpoint.background=false", "--inject", fault];
    assert_ne!(job.train("12", &flags).code, 0);
    job.lose(2, 4);
    assert_eq!(job.folder.result(), expected);

    let job = Job::new(THREE_NODES);
    job.train("8", &[]).expect(0);
    let manifest = job.manifest_of_step_8(1);
    fs::remove_file(&manifest).unwrap(); // as after a kill before this node had published it
    assert_ne!(job.train("12", &["--inject", "kill@step=10,rank=0,attempt=2"]).code, 0);
    assert!(manifest.exists(), "published again, and not removed with its files");
    job.lose(0, 8);
    assert_eq!(job.folder.result(), expected);
}

#[test]
fn copies_on_the_same_node_are_refused() {
    let folder = Folder::new();
    let nvme = format!("checkpoint.nvme.path={}", folder.sibling("nvme").display());
    let out = folder.text();
    let arguments = ["train", "--out", &out, "--steps", "2", "--set", &nvme, "--set"];
    let partner = [&arguments[..], &["checkpoint.nvme.partner=true"]].concat();
    let expected = "expected at most half of the ranks on each node, found 2 of 2 on one";
    finish(mpirun(2, &partner)).expect(2).expect_stderr(&["checkpoint.nvme.partner", expected]);
    assert!(!folder.path().exists(), "refused before the run has a folder");
    let shared = [&arguments[..], &["checkpoint.shared.partner=true"]].concat();
    finish(mpirun(2, &shared)).expect(2).expect_stderr(&["only nvme has partner copies"]);
}
