//! Several tiers: nodes that are lost, replaced or swapped, damaged and partial copies, and tiers
//! that do not answer. Ranks are threads, nodes are folders.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use checkpoint::tier::LocalTier;
use checkpoint::{
    Dtype, Error, Identity, Member, NoFailpoints, PartMut, Peers, PeersError, Reads, Restored,
    RetentionReport, Scope, Store, TensorBox, Tiers, Unusable,
};
use tempfile::TempDir;

use crate::faulty;
use crate::support::*;

/// Disks of nodes, and a file system that all of them share.
pub(crate) struct Cluster {
    nodes: Vec<TempDir>,
    shared: TempDir,
    has_shared: bool,
    /// File of nodes that cannot be read now.
    unreadable: Option<&'static str>,
}

/// Node of each rank.
pub(crate) type Placement<'a> = &'a [usize];

pub(crate) const NVME: &[Scope] = &[Scope::Node];
const BOTH: &[Scope] = &[Scope::Node, Scope::Shared];

impl Cluster {
    pub(crate) fn new(nodes: usize, has_shared: bool) -> Self {
        let nodes = (0..nodes).map(|_| tempfile::tempdir().unwrap()).collect();
        let shared = tempfile::tempdir().unwrap();
        Self { nodes, shared, has_shared, unreadable: None }
    }

    pub(crate) fn nvme(&self, node: usize) -> &Path {
        self.nodes[node].path()
    }

    fn shared(&self) -> PathBuf {
        self.shared.path().join("checkpoints")
    }

    pub(crate) fn tiers(&self, node: usize) -> Tiers {
        let nvme = match self.unreadable {
            Some(file) => faulty::open_without(self.nvme(node), file).with_scope(Scope::Node),
            None => open_node(self.nvme(node)),
        };
        let nvme = Arc::new(nvme);
        let mut members = vec![Member { name: "nvme".to_owned(), scope: Scope::Node, store: nvme }];
        if self.has_shared {
            let store = Arc::new(open(&self.shared()));
            members.push(Member { name: "shared".to_owned(), scope: Scope::Shared, store });
        }
        Tiers::new(members)
    }

    /// Saves the same checkpoint on tiers, and returns its name.
    pub(crate) fn save(&self, placement: Placement<'_>, step: u64, on: &[Scope]) -> String {
        let model = model(step);
        let names = on_ranks(placement.len(), |peers| {
            let tiers = self.tiers(placement[peers.rank()]);
            let parts = parts(&model, peers.world(), peers.rank());
            let request = request(step, 1, state(step));
            let members = tiers.members().iter().filter(|member| on.contains(&member.scope));
            let save = |member: &Member| member.store.save(&request, &parts, peers, &NoFailpoints);
            let saved: Vec<_> = members.map(|member| save(member).unwrap().checkpoint).collect();
            saved[0].clone()
        });
        names[0].clone()
    }

    pub(crate) fn try_resume(
        &self,
        placement: Placement<'_>,
    ) -> Vec<Result<Option<Restored>, Error>> {
        on_ranks(placement.len(), |peers| {
            let tiers = self.tiers(placement[peers.rank()]);
            let mut data: Vec<Vec<u8>> =
                model(0).iter().map(|bytes| vec![0xAA; bytes.len()]).collect();
            let restored = tiers.resume(&mut whole_parts(&mut data), peers)?;
            if let Some(restored) = &restored {
                assert_eq!(data, model(restored.step), "all bytes of step {}", restored.step);
                assert_eq!(restored.state, state(restored.step));
            }
            Ok(restored)
        })
    }

    /// Restores on every rank, all bytes checked.
    pub(crate) fn resume(&self, placement: Placement<'_>) -> Vec<Restored> {
        let all = self.try_resume(placement).into_iter();
        let all: Vec<_> = all.map(|result| result.unwrap().expect("found")).collect();
        assert!(all.iter().all(|other| other.checkpoint == all[0].checkpoint));
        assert!(all.iter().all(|other| other.warnings == all[0].warnings));
        all
    }

    /// Restores only its own share on each rank, and returns the sources of the bytes.
    pub(crate) fn resume_shares(&self, placement: Placement<'_>, step: u64) -> Vec<Restored> {
        on_ranks(placement.len(), |peers| {
            let share = share_of(peers.world(), peers.rank());
            let tiers = self.tiers(placement[peers.rank()]);
            let restored = share.resume(&tiers, peers).unwrap().unwrap();
            assert_eq!(restored.step, step);
            restored
        })
    }

    /// A new machine in the place of a node.
    pub(crate) fn replace(&mut self, node: usize) {
        self.nodes[node] = tempfile::tempdir().unwrap();
    }

    /// Takes the shared tier away: whoever looks for it gets ELOOP, also root.
    fn take_shared_away(&self) {
        fs::rename(self.shared(), self.shared.path().join("aside")).unwrap();
        std::os::unix::fs::symlink(self.shared(), self.shared()).unwrap();
    }

    fn bring_shared_back(&self) {
        fs::remove_file(self.shared()).unwrap();
        fs::rename(self.shared.path().join("aside"), self.shared()).unwrap();
    }

    /// Returns which nodes, and the shared tier at the end, count a checkpoint as committed.
    pub(crate) fn committed(&self, name: &str) -> Vec<bool> {
        let nodes = self.nodes.iter().map(|node| node.path().to_owned());
        let roots = nodes.chain(self.has_shared.then(|| self.shared()));
        roots.map(|root| root.join(name).join("MANIFEST.json").exists()).collect()
    }
}

/// Part of the model that a rank of a world has.
#[derive(Clone, Copy)]
pub(crate) struct ShareOf {
    world: usize,
    rank: usize,
}

pub(crate) fn share_of(world: usize, rank: usize) -> ShareOf {
    ShareOf { world, rank }
}

impl ShareOf {
    /// Restores it, all bytes checked.
    pub(crate) fn resume(
        self,
        tiers: &Tiers,
        peers: &dyn Peers,
    ) -> Result<Option<Restored>, Error> {
        let of_step = |model: &[Vec<u8>]| -> Vec<Vec<u8>> {
            let parts = parts(model, self.world, self.rank);
            parts.iter().map(|part| part.data.to_vec()).collect()
        };
        let any = model(0);
        let mut data: Vec<_> = of_step(&any).iter().map(|part| vec![0xAA; part.len()]).collect();
        let boxes = parts(&any, self.world, self.rank).into_iter().map(|part| part.tensor);
        let pairs = boxes.zip(&mut data);
        let mut wanted: Vec<_> = pairs.map(|(tensor, data)| PartMut { tensor, data }).collect();
        let restored = tiers.resume(&mut wanted, peers)?;
        if let Some(restored) = &restored {
            assert_eq!(data, of_step(&model(restored.step)), "all bytes of {}", restored.step);
        }
        Ok(restored)
    }
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn shard(root: &Path, name: &str, rank: usize) -> PathBuf {
    root.join(name).join(format!("d{:02}/r{rank:05}-000.safetensors", rank / 2))
}

/// Bytes of each rank from each tier, and from peers of those.
fn bytes(restored: &[Restored]) -> Vec<Vec<[u64; 2]>> {
    let of_rank = |restored: &Restored| {
        restored.sources.iter().map(|source| [source.bytes, source.from_peers]).collect()
    };
    restored.iter().map(of_rank).collect()
}

#[test]
fn the_nearest_copy_is_read() {
    let cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    let restored = cluster.resume_shares(&[0, 1], 10);
    for [nvme, shared] in bytes(&restored).into_iter().map(|it| [it[0], it[1]]) {
        assert!(nvme[0] > 0 && nvme[1] == 0 && shared == [0, 0], "{restored:?}");
    }
    let whole = cluster.resume(&[0, 1]);
    for tiers in bytes(&whole) {
        assert!(tiers.iter().all(|tier| tier[0] > 0 && tier[1] == 0), "{tiers:?}");
    }
    assert!(whole[0].rejected.is_empty() && whole[0].warnings.is_empty(), "{whole:?}");
}

#[test]
fn a_lost_node_comes_back_from_the_shared_tier() {
    let mut cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    let name = cluster.save(&[0, 1], 20, BOTH);
    cluster.replace(1);
    let restored = cluster.resume_shares(&[0, 1], 20);
    let total: u64 = restored.iter().map(|restored| restored.bytes_read).sum();
    let [own, other] = [&bytes(&restored)[0], &bytes(&restored)[1]];
    assert_eq!([own[0][0] + other[1][0], own[1][0], other[0][0]], [total, 0, 0]);
    assert_eq!(cluster.resume(&[0, 1])[0].step, 20);
    assert_eq!(cluster.committed(&name), [true, false, true], "a part is no damage");
}

#[test]
fn without_a_shared_tier_a_lost_node_is_an_error() {
    let mut cluster = Cluster::new(2, false);
    let names = [10, 20].map(|step| cluster.save(&[0, 1], step, NVME));
    cluster.replace(1);
    for result in cluster.try_resume(&[0, 1]) {
        let Error::NoCheckpoint { rejected, .. } = result.unwrap_err() else { panic!() };
        assert_eq!(rejected.len(), 2);
        let reason = &rejected[0].failures[0].reason;
        assert!(reason.contains("1 of the 2 ranks") && reason.contains("rank 1"), "{reason}");
    }
    assert!(names.iter().all(|name| cluster.committed(name)[0]), "all stay as they are");
    for result in Cluster::new(2, true).try_resume(&[0, 1]) {
        assert!(result.unwrap().is_none(), "nothing was ever committed");
    }
}

#[test]
fn a_lost_node_falls_back_to_what_the_shared_tier_has() {
    let mut cluster = Cluster::new(2, true);
    let old = cluster.save(&[0, 1], 10, BOTH);
    let new = cluster.save(&[0, 1], 20, NVME);
    cluster.replace(1);
    let restored = cluster.resume(&[0, 1]);
    assert_eq!((restored[0].step, &*restored[0].rejected[0].checkpoint), (10, &*new));
    assert_eq!(cluster.committed(&new), [false; 3], "retention must not count it");
    assert_eq!(cluster.committed(&old), [true, false, true]);
}

#[test]
fn ranks_on_other_nodes_get_their_files_from_peers() {
    let cluster = Cluster::new(3, false);
    cluster.save(&[0, 1, 2], 10, NVME);
    let restored = cluster.resume_shares(&[2, 0, 1], 10);
    for tiers in bytes(&restored) {
        assert!(tiers[0][0] > 0 && tiers[0][0] == tiers[0][1], "all of it was sent: {tiers:?}");
    }
    let whole = cluster.resume(&[2, 0, 1]);
    for tiers in bytes(&whole) {
        assert!(tiers[0][1] > 0 && tiers[0][1] < tiers[0][0], "its own part was not: {tiers:?}");
    }
}

#[test]
fn any_world_reads_any_other_from_peers() {
    let placements: [&[usize]; 5] = [&[0], &[0, 1], &[0, 0, 1], &[1, 0, 1, 0], &[1, 1, 0, 2, 2]];
    for saved in placements {
        for resumed in placements {
            let has = |node: &usize| resumed.contains(node);
            if !saved.iter().all(has) {
                continue; // a node that is not there any more
            }
            let cluster = Cluster::new(3, false);
            cluster.save(saved, 10, NVME);
            cluster.resume(resumed);
            cluster.resume_shares(resumed, 10);
        }
    }
}

#[test]
fn a_replacement_node_with_an_empty_disk_is_an_ordinary_case() {
    let cluster = Cluster::new(4, false);
    cluster.save(&[0, 1], 10, NVME);
    let restored = cluster.resume(&[3, 1, 0]);
    assert_eq!((restored[0].step, restored[0].warnings.len()), (10, 0));
    let [nvme] = bytes(&restored)[0][..] else { panic!() };
    assert_eq!(nvme[0], nvme[1], "the new node has nothing of its own");
}

#[test]
fn past_a_flipped_bit_the_good_copy_is_taken() {
    let cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    let name = cluster.save(&[0, 1], 20, BOTH);
    flip(&shard(cluster.nvme(1), &name, 1), 4100);
    let restored = cluster.resume(&[0, 1]);
    assert_eq!((restored[0].step, restored[0].rejected.len()), (20, 0));
    let warning = &restored[0].warnings[0];
    assert!(warning.contains("tier nvme: rank 1") && warning.contains("CRC64"), "{warning}");
    assert_eq!(cluster.committed(&name), [true, false, true]);
    assert_eq!(cluster.resume(&[0, 1])[0].warnings, [""; 0], "it is not looked at again");
}

#[test]
fn copies_that_are_damaged_in_different_places_complete_each_other() {
    let cluster = Cluster::new(2, true);
    let name = cluster.save(&[0, 1], 10, BOTH);
    flip(&shard(cluster.nvme(0), &name, 0), 4100);
    flip(&shard(&cluster.shared(), &name, 1), 4100);
    for warnings in [2, 0] {
        let restored = cluster.resume(&[0, 1]);
        assert_eq!((restored[0].step, restored[0].rejected.len()), (10, 0));
        assert_eq!(restored[0].warnings.len(), warnings);
        assert_eq!(cluster.committed(&name), [false, true, true], "rank 0 is only there");
    }
    // A copy of which something is rejected is not one of those that retention keeps.
    let older = cluster.save(&[0, 1], 5, &[Scope::Shared]);
    let store = open(&cluster.shared());
    assert_eq!(store.apply_retention(1, 1, &NoFailpoints), RetentionReport::default());
    assert_eq!(names(&store), [&name[..], &older]);
    // Nor is it one to export, until it is reinstated.
    assert_eq!(store.newest().unwrap().unwrap().name, older);
    assert!(store.verify(&name).unwrap().is_rejected && store.reinstate(&name).is_ok());
    assert_eq!(store.newest().unwrap().unwrap().name, name);
}

/// Two copies may each have what the other lacks, or not: then the last of them stays.
#[test]
fn of_two_damaged_copies_one_stays_for_what_only_it_has() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let cluster = Cluster::new(2, false);
    let name = cluster.save(&[0, 1], 10, NVME);
    let whole = Cluster::new(1, true);
    assert_eq!(whole.save(&[0, 0], 10, BOTH), name);
    for folder in &folders {
        for file in files(&whole.shared()) {
            let copy = folder.path().join(file.strip_prefix(whole.shared()).unwrap());
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(file, copy).unwrap();
        }
        flip(&shard(folder.path(), &name, 0), 4100);
    }
    fs::remove_dir_all(cluster.nvme(1).join(&name)).unwrap();
    for warnings in [2, 0] {
        let restored = on_ranks(2, |peers| {
            let mut members = cluster.tiers(peers.rank()).members().to_vec();
            members.extend(folders.iter().zip(["first", "second"]).map(|(folder, tier)| Member {
                name: tier.to_owned(),
                scope: Scope::Shared,
                store: Arc::new(open(folder.path())),
            }));
            // Rank 1 has no file of rank 0: it tries both copies, and then rank 0's disk.
            let mut data: Vec<Vec<u8>> = model(0).iter().map(|it| vec![0; it.len()]).collect();
            let restored = Tiers::new(members).resume(&mut whole_parts(&mut data), peers);
            assert_eq!(data, model(10));
            restored.unwrap().unwrap().warnings
        });
        assert_eq!(restored[0].len(), warnings, "{:?}", restored[0]);
    }
    let counts = folders.each_ref().map(|folder| open(folder.path()).holds(&name).unwrap());
    assert_eq!(counts, [false, true], "rank 1's files are only there");
}

#[test]
fn a_damaged_manifest_or_index_of_one_tier_is_passed_by() {
    for file in ["MANIFEST.json", "d00/r00001.idx.json"] {
        let cluster = Cluster::new(1, true);
        let name = cluster.save(&[0, 0], 10, BOTH);
        flip(&cluster.nvme(0).join(&name).join(file), 200);
        let restored = cluster.resume(&[0, 0]);
        assert_eq!((restored[0].step, restored[0].rejected.len()), (10, 0), "{file}");
        assert!(restored[0].warnings[0].contains("tier nvme"), "{file}");
        let counts_for_others = file != "MANIFEST.json";
        assert_eq!(cluster.committed(&name), [counts_for_others, true], "{file}");
        assert_eq!(cluster.resume(&[0, 0])[0].warnings, [""; 0], "it is not looked at again");
    }
}

#[test]
fn without_a_good_copy_an_older_step_is_taken_loudly() {
    for placement in [[0, 1], [1, 0]] {
        let cluster = Cluster::new(2, false);
        let old = cluster.save(&[0, 1], 10, NVME);
        let new = cluster.save(&[0, 1], 20, NVME);
        flip(&shard(cluster.nvme(1), &new, 1), 4100);
        let restored = cluster.resume(&placement);
        assert_eq!(restored[0].step, 10);
        assert_eq!(restored[0].rejected[0].checkpoint, new);
        let reason = &restored[0].rejected[0].failures[0].reason;
        assert!(reason.contains("r00001-000.safetensors"), "{reason}");
        assert_eq!(cluster.committed(&new), [false, false], "on all nodes");
        assert_eq!(cluster.committed(&old), [true, true]);
    }
}

#[test]
fn a_checkpoint_that_only_some_nodes_committed_does_not_count() {
    let cluster = Cluster::new(2, false);
    cluster.save(&[0, 1], 10, NVME);
    let new = cluster.save(&[0, 1], 20, NVME);
    fs::remove_file(cluster.nvme(1).join(&new).join("MANIFEST.json")).unwrap();
    let restored = cluster.resume(&[0, 1]);
    assert_eq!((restored[0].step, &*restored[0].rejected[0].checkpoint), (10, &*new));
    let store = open_node(cluster.nvme(0));
    assert_eq!(store.apply_retention(2, 1, &NoFailpoints).removed, [""; 0], "10 is the newest");
}

#[test]
fn an_unreachable_tier_is_a_warning_where_others_have_all() {
    let cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    let tiers: Vec<_> = (0..2).map(|node| cluster.tiers(node)).collect();
    cluster.take_shared_away();
    let all = on_ranks(2, |peers| {
        let tiers = &tiers[peers.rank()];
        let claim = tiers.claim_attempt(2, peers).unwrap();
        assert_eq!(claim.attempt, 2);
        let [unusable] = &tiers.unusable()[..] else { panic!("{:?}", tiers.unusable()) };
        assert_eq!((&*unusable.tier, unusable.rank), ("shared", 0));
        let mut data = model(0);
        let restored = tiers.resume(&mut whole_parts(&mut data), peers).unwrap().unwrap();
        assert_eq!((restored.step, data), (10, model(10)));
        restored.warnings
    });
    assert!(all[1].len() == 1 && all[1][0].contains("tier shared: rank 0"), "{all:?}");
}

#[test]
fn an_unreachable_tier_does_not_make_a_resume_fall_back() {
    let mut cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, NVME);
    cluster.save(&[0, 1], 20, BOTH);
    let old = tempfile::tempdir().unwrap();
    let oldest = files(&cluster.nvme(1).join("s000000010-a0001-00000001"));
    for path in &oldest {
        fs::copy(path, old.path().join(path.file_name().unwrap())).unwrap();
    }
    cluster.replace(1); // and only the older checkpoint is put back
    let folder = cluster.nvme(1).join("s000000010-a0001-00000001");
    for path in &oldest {
        let name = path.file_name().unwrap();
        let is_manifest = name == "MANIFEST.json";
        let target = if is_manifest { folder.clone() } else { folder.join("d00") };
        fs::create_dir_all(&target).unwrap();
        fs::copy(old.path().join(name), target.join(name)).unwrap();
    }
    let tiers: Vec<_> = (0..2).map(|node| cluster.tiers(node)).collect();
    cluster.take_shared_away();
    let results = on_ranks(2, |peers| {
        let mut data = model(0);
        tiers[peers.rank()].resume(&mut whole_parts(&mut data), peers).map(|_| ())
    });
    assert!(matches!(results[0], Err(Error::Io { .. })), "{results:?}");
    assert!(matches!(results[1], Err(Error::OtherRanksFailed { .. })), "{results:?}");
    cluster.bring_shared_back();
    assert_eq!(cluster.resume(&[0, 1])[0].step, 20);
}

/// Refuses writes as a full disk does, or credentials that may only read.
#[test]
fn a_tier_that_refuses_writes_is_read() {
    let mut cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    cluster.save(&[0, 1], 20, BOTH);
    cluster.replace(1);
    let faults = faulty::Faults::new("", faulty::Damage::RefusedWrites, 0);
    let all = on_ranks(2, |peers| {
        let rank = peers.rank();
        let nvme = Arc::new(open_node(cluster.nvme(rank)));
        let shared = Arc::new(faulty::open(&cluster.shared(), &faults));
        let tiers = Tiers::new(vec![
            Member { name: "nvme".to_owned(), scope: Scope::Node, store: nvme },
            Member { name: "shared".to_owned(), scope: Scope::Shared, store: shared },
        ]);
        tiers.claim_attempt(2, peers).unwrap();
        let mut data = model(0);
        let restored = tiers.resume(&mut whole_parts(&mut data), peers).unwrap().unwrap();
        assert_eq!(data, model(20));
        (restored.step, restored.warnings, tiers.unusable())
    });
    for (step, warnings, unusable) in all {
        let [Unusable { tier, rank: 0, reads: Reads::All, .. }] = &unusable[..] else {
            panic!("{unusable:?}");
        };
        assert_eq!((step, warnings, tier.as_str()), (20, Vec::new(), "shared"));
    }
}

#[test]
fn a_tier_that_one_node_cannot_open_is_read_on_the_others() {
    let cluster = Cluster::new(2, false);
    cluster.save(&[0, 0], 10, NVME);
    let unusable = Unusable {
        tier: "nvme".to_owned(),
        rank: 1,
        reason: "no disk".to_owned(),
        reads: Reads::Nothing,
    };
    let place = cluster.nvme(1).join("absent"); // would be created by whoever opens it
    let all = on_ranks(2, |peers| {
        let identity = Identity::new("run-1", "workload-1");
        let store = match peers.rank() {
            0 => open_node(cluster.nvme(0)),
            _ => Store::without_saves(Arc::new(LocalTier::new(&place)), &identity)
                .with_options(SMALL)
                .with_scope(Scope::Node),
        };
        let nvme = Member { name: "nvme".to_owned(), scope: Scope::Node, store: Arc::new(store) };
        let tiers = Tiers::new(vec![nvme]).with_unusable(vec![unusable.clone()]);
        let refused = tiers.claim_attempt(2, peers).unwrap_err();
        assert!(refused.to_string().contains("nvme: no disk"), "{refused}");
        let mut data = model(0);
        let restored = tiers.resume(&mut whole_parts(&mut data), peers).unwrap().unwrap();
        assert_eq!(data, model(10));
        restored.step
    });
    assert_eq!(all, [10, 10]);
    assert!(!place.exists());
}

#[test]
fn a_shard_that_cannot_be_read_now_is_taken_from_elsewhere_and_not_rejected() {
    let mut cluster = Cluster::new(1, true);
    let name = cluster.save(&[0, 0], 10, BOTH);
    cluster.unreadable = Some("r00000-000.safetensors");
    let restored = cluster.resume(&[0, 0]);
    assert_eq!((restored[0].step, restored[0].rejected.len()), (10, 0));
    assert!(!restored[0].warnings.is_empty());
    assert_eq!(cluster.committed(&name), [true, true]);
}

#[test]
fn an_attempt_is_claimed_on_all_tiers() {
    let cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    fs::write(cluster.nvme(1).join("ATTEMPT-0006"), "").unwrap();
    let claims = on_ranks(3, |peers| {
        cluster.tiers([0, 1, 1][peers.rank()]).claim_attempt(2, peers).unwrap()
    });
    assert_eq!((claims[0].attempt, claims[1], claims[2]), (7, claims[0], claims[0]));
    let roots = [cluster.nvme(0).to_owned(), cluster.nvme(1).to_owned(), cluster.shared()];
    let texts = roots.map(|root| fs::read(root.join("ATTEMPT-0007")).unwrap());
    assert!(texts.iter().all(|text| *text == texts[0]), "the same claim");
    assert!(!cluster.nvme(1).join("ATTEMPT-0006").exists(), "older claims are removed");
}

#[test]
fn jobs_that_start_together_get_different_attempts() {
    let cluster = Cluster::new(2, true);
    for _ in 0..10 {
        let claim = || {
            let claims = on_ranks(2, |peers| {
                cluster.tiers(peers.rank()).claim_attempt(1, peers).unwrap().attempt
            });
            assert_eq!(claims[0], claims[1]);
            claims[0]
        };
        let [first, second] = std::thread::scope(|scope| {
            [scope.spawn(claim), scope.spawn(claim)].map(|job| job.join().unwrap())
        });
        assert_ne!(first, second);
    }
}

#[test]
fn where_no_tier_is_usable_claiming_is_an_error() {
    let cluster = Cluster::new(1, false);
    let tiers = cluster.tiers(0);
    let root = cluster.nvme(0).to_owned();
    fs::remove_dir_all(&root).unwrap();
    std::os::unix::fs::symlink(&root, &root).unwrap();
    let results = on_ranks(2, |peers| tiers.claim_attempt(1, peers));
    assert!(results.iter().all(|result| matches!(result, Err(Error::Io { .. }))), "{results:?}");
    fs::remove_file(&root).unwrap();
    fs::create_dir(&root).unwrap();
}

#[test]
fn a_box_that_is_not_saved_is_named_and_no_older_step_taken() {
    let cluster = Cluster::new(2, true);
    cluster.save(&[0, 1], 10, BOTH);
    for result in on_ranks(2, |peers| {
        let tensor = TensorBox::whole("exp_avg.wte", Dtype::F32, &[2]);
        let mut data = [0; 8];
        let mut parts = [PartMut { tensor, data: &mut data }];
        cluster.tiers(peers.rank()).resume(&mut parts, peers).map(|_| ())
    }) {
        assert!(matches!(result, Err(Error::Uncovered { .. })), "{result:?}");
    }
}

/// Network that flips a bit in data that a rank sends, a given number of times.
struct Noisy<'a> {
    peers: &'a Thread,
    left: Cell<usize>,
}

impl Peers for Noisy<'_> {
    fn rank(&self) -> usize {
        self.peers.rank()
    }

    fn world(&self) -> usize {
        self.peers.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        self.peers.all_gather(payload)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), PeersError> {
        if root == self.rank() {
            self.flip_last(bytes);
        }
        self.peers.broadcast(root, bytes)
    }

    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        deadline: Instant,
    ) -> Result<(), PeersError> {
        self.flip_last(sent);
        self.peers.send_receive(to, sent, from, received, deadline)
    }
}

impl Noisy<'_> {
    fn flip_last(&self, sent: &mut [u8]) {
        if let Some(last) = sent.last_mut()
            && let Some(left) = self.left.get().checked_sub(1)
        {
            self.left.set(left);
            *last ^= 1;
        }
    }
}

/// Two ranks broadcast what they have, more ranks send it to those that want it.
const BROADCAST_OR_MESSAGES: [usize; 2] = [2, 5];

/// Restores on each rank the share of the next one.
fn resume_over_noise(
    cluster: &Cluster,
    world: usize,
    flips: usize,
) -> Vec<Result<Restored, Error>> {
    on_ranks(world, |peers| {
        let next = (peers.rank() + 1) % world;
        let noisy = Noisy { peers, left: Cell::new(flips) };
        let tiers = cluster.tiers(peers.rank());
        let restored = share_of(world, next).resume(&tiers, &noisy)?;
        Ok(restored.expect("found"))
    })
}

#[test]
fn what_arrives_damaged_is_sent_again() {
    for world in BROADCAST_OR_MESSAGES {
        let placement: Vec<_> = (0..world).collect();
        let cluster = Cluster::new(world, false);
        cluster.save(&placement, 10, NVME);
        let name = cluster.save(&placement, 20, NVME);
        for restored in resume_over_noise(&cluster, world, 1) {
            let restored = restored.unwrap();
            assert_eq!(restored.step, 20);
            assert!(restored.warnings[0].contains("as sent"), "{:?}", restored.warnings);
        }
        assert_eq!(cluster.committed(&name), vec![true; world]);
    }
}

#[test]
fn a_network_that_damages_all_does_not_make_a_resume_fall_back() {
    for world in BROADCAST_OR_MESSAGES {
        let placement: Vec<_> = (0..world).collect();
        let cluster = Cluster::new(world, false);
        cluster.save(&placement, 10, NVME);
        let name = cluster.save(&placement, 20, NVME);
        for result in resume_over_noise(&cluster, world, usize::MAX) {
            let Error::OtherRanksFailed { failures, .. } = result.unwrap_err() else { panic!() };
            assert!(failures[0].reason.contains("as sent"), "{failures:?}");
        }
        assert_eq!(cluster.committed(&name), vec![true; world], "the copies are good");
    }
}
