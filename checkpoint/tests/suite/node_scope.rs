//! Saves on disks of nodes: every rank commits on its own node, and ranks of a node do so at once.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{
    Error, Failpoint, Failpoints, NoFailpoints, Peers, RetentionReport, Save, Status, Store,
};
use tempfile::TempDir;

use crate::support::*;

/// Nodes of two ranks each.
struct Nodes(Vec<TempDir>);

impl Nodes {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| tempfile::tempdir().unwrap()).collect())
    }

    fn path(&self, rank: usize) -> &Path {
        self.0[rank / 2].path()
    }

    /// Saves, and applies retention, each rank with a store of its own as in processes.
    fn save(
        &self,
        request: &Save,
        failpoints: &(dyn Failpoints + Sync),
    ) -> Vec<Result<RetentionReport, Error>> {
        let model = model(request.step);
        on_ranks(self.0.len() * 2, |peers| {
            let store = open_node(self.path(peers.rank()));
            let parts = parts(&model, peers.world(), peers.rank());
            let report = store.save(request, &parts, peers, failpoints)?;
            assert_eq!(report.warnings, [""; 0]);
            Ok(store.apply_retention(request.claim.attempt, 1, failpoints))
        })
    }

    fn stores(&self) -> Vec<Store> {
        self.0.iter().map(|folder| open_node(folder.path())).collect()
    }

    fn manifests(&self, name: &str) -> Vec<PathBuf> {
        self.0.iter().map(|folder| folder.path().join(name).join("MANIFEST.json")).collect()
    }
}

fn steps(store: &Store) -> Vec<(u64, bool)> {
    let committed = |status: &Status| matches!(status, Status::Committed { .. });
    store.list().unwrap().iter().map(|listed| (listed.step, committed(&listed.status))).collect()
}

#[test]
fn every_node_commits_the_same_manifest_and_removes_old_ones() {
    let nodes = Nodes::new(2);
    for step in 1..=20 {
        for report in nodes.save(&request(step, 1, state(step)), &NoFailpoints) {
            assert_eq!(report.unwrap().warnings, [""; 0]);
        }
        for store in nodes.stores() {
            assert_eq!(steps(&store), [(step, true)]);
        }
    }
    let name = names(&nodes.stores()[0]).remove(0);
    let texts: Vec<_> = nodes.manifests(&name).iter().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(texts[0], texts[1]);
    for (node, other) in [(0, "r00002"), (1, "r00001")] {
        let files = files(nodes.0[node].path());
        let of_other = |path: &PathBuf| path.to_str().unwrap().contains(other);
        assert!(!files.iter().any(of_other), "{files:?}");
        let leftover = |path: &PathBuf| path.extension().is_some_and(|it| it == "tmp");
        assert!(!files.iter().any(leftover), "{files:?}");
    }
}

#[test]
fn the_files_of_a_node_make_its_part_intact() {
    let nodes = Nodes::new(2);
    let save = |step| nodes.save(&request(step, 1, state(step)), &NoFailpoints);
    save(10);
    let name = names(&nodes.stores()[1]).remove(0);
    let shard = nodes.path(2).join(&name).join("d01/r00002-000.safetensors");
    fs::remove_file(shard).unwrap();
    let reports = nodes.stores().into_iter().map(|store| {
        let report = store.apply_retention(1, 1, &NoFailpoints);
        (report.warnings.len(), store.verify(&name).unwrap().problems.len())
    });
    assert_eq!(reports.collect::<Vec<_>>(), [(0, 0), (1, 1)]);
    fs::remove_dir_all(nodes.path(2).join(&name).join("d01")).unwrap();
    assert_eq!(nodes.stores()[1].apply_retention(1, 1, &NoFailpoints).warnings.len(), 1);
}

/// Takes the folder of a node away, so that its manifest cannot be written.
struct NodeFails(PathBuf);

impl Failpoints for NodeFails {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::VoteBeforeManifest && self.0.exists() {
            fs::remove_dir_all(&self.0).unwrap_or_default(); // both ranks of the node do it
        }
    }
}

#[test]
fn a_node_that_cannot_commit_fails_the_save_on_all() {
    let nodes = Nodes::new(2);
    let request = request(10, 1, state(10));
    let failing = nodes.path(3).join("s000000010-a0001-00000001");
    for result in nodes.save(&request, &NodeFails(failing)) {
        let Error::SaveFailed { failures, .. } = result.unwrap_err() else { panic!() };
        assert_eq!(failures.iter().map(|failure| failure.rank).collect::<Vec<_>>(), [2, 3]);
    }
    for store in nodes.stores() {
        assert!(names(&store).is_empty(), "removed where it was committed, too");
    }
}

#[test]
fn a_claim_on_any_node_fences() {
    let nodes = Nodes::new(2);
    nodes.save(&request(10, 1, state(10)), &NoFailpoints);
    fs::write(nodes.path(3).join("ATTEMPT-0002"), "").unwrap();
    for result in nodes.save(&request(20, 1, state(20)), &NoFailpoints) {
        assert!(matches!(result, Err(Error::Fenced { .. })), "{result:?}");
    }
    for store in nodes.stores() {
        assert_eq!(steps(&store), [(10, true)]);
    }
}

#[test]
fn ranks_of_other_parents_do_not_commit() {
    let nodes = Nodes::new(1);
    let results = on_ranks(2, |peers| {
        let parent = (peers.rank() == 1).then(|| "s000000005-a0001-00000001".to_owned());
        let request = Save { parent, ..request(10, 1, state(10)) };
        open_node(nodes.path(0)).save(&request, &[], peers, &NoFailpoints).map(|_| ())
    });
    for result in results {
        assert!(matches!(result, Err(Error::Disagree { what: "parent", .. })), "{result:?}");
    }
    assert!(names(&nodes.stores()[0]).is_empty());
}
