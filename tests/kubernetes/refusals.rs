//! Jobs that cannot work: the launcher or a rank reports the reason, before anything is trained.

use crate::cluster::Cluster;
use crate::job::Job;
use crate::table::Case;

#[test]
fn wrong_slots() {
    let case = Case { position: 9, title: "wrong slot count" };
    let cluster = Cluster::open();
    let ranks = ("ranks_per_node = 1", "ranks_per_node = 2");
    let mut job = Job::render(&cluster, "wrong-slots", &[ranks]);
    job.replace("slotsPerWorker: 2", "slotsPerWorker: 1");
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), 60);
    case.add(&job, "2 ranks per node, `slotsPerWorker: 1`", &ended);
    ended.expect(3, &["2 ranks per node", "slotsPerWorker"]);
    assert!(!job.run().join("record.json").exists());
}

#[test]
fn gpus_that_are_not_there() {
    let case = Case { position: 10, title: "GPUs that are not there" };
    let cluster = Cluster::open();
    cluster.pretend_gpus(1);
    let gpus = ("ranks_per_node = 1", "gpus_per_node = 1");
    let job = Job::render(&cluster, "no-gpus", &[gpus]);
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), 90);
    case.add(&job, "nodes that claim to have one", &ended);
    ended.expect(3, &["CUDA"]);
}

#[test]
fn too_little_memory() {
    let case = Case { position: 11, title: "too little memory" };
    let cluster = Cluster::open();
    let job = Job::render(&cluster, "little-memory", &[("memory = \"1Gi\"", "memory = \"128Mi\"")]);
    case.begin(&cluster);
    let ended = job.wait_for_end(job.apply(), 60);
    case.add(&job, "a limit below the memory plan", &ended);
    ended.expect(3, &["memory"]);
}
