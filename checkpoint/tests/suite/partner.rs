//! Copies of each rank's files on another node: what is lost with a node, in flight or on the way
//! to the commit. Ranks are threads, nodes are folders.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::promotion::{Holding, assign};
use checkpoint::{
    Dtype, Error, Failpoint, Failpoints, NoFailpoints, Partner, Peers, PeersError, Restored,
    SaveReport, Saver, Staging, Store, TensorBox,
};
use device::Allocator;

use crate::faulty::{self, Damage, Faults};
use crate::kill::Killer;
use crate::saver::{self, Hung, LONG, Model, no_veto};
use crate::support::*;
use crate::tiers::{Cluster, Placement};

/// Worlds of 2, 4 and 6 ranks, one or two on a node.
const PLACEMENTS: [Placement<'static>; 5] =
    [&[0, 1], &[0, 1, 2, 3], &[0, 0, 1, 1], &[0, 1, 2, 3, 4, 5], &[0, 1, 2, 0, 1, 2]];

fn nodes(placement: Placement<'_>) -> usize {
    placement.iter().max().unwrap() + 1
}

fn partner(placement: Placement<'_>, rank: usize) -> Partner {
    Partner::of(rank, placement).expect("no node has more than half")
}

fn rank_saver(store: &Arc<Store>, placement: Placement<'_>, peers: &dyn Peers) -> Saver {
    let partner = partner(placement, peers.rank());
    saver::saver(store, peers, LONG).with_partner(Some(partner))
}

/// Saves the model of seed `step` with copies, each rank on its node.
fn save_rank(
    root: &Path,
    placement: Placement<'_>,
    step: u64,
    peers: &dyn Peers,
    failpoints: impl Failpoints + Send + Sync + 'static,
) -> Result<SaveReport, Error> {
    let mut saver = rank_saver(&Arc::new(open_node(root)), placement, peers);
    saver::start(&mut saver, step, peers, no_veto(), failpoints);
    let report = saver.finish(peers, &mut |_| ())?.expect("one was started");
    saver.finish_afterwards();
    Ok(report)
}

pub(crate) fn save(cluster: &Cluster, placement: Placement<'_>, step: u64) -> String {
    let reports = on_ranks(placement.len(), |peers| {
        let root = cluster.nvme(placement[peers.rank()]);
        save_rank(root, placement, step, peers, NoFailpoints).unwrap()
    });
    reports[0].checkpoint.clone()
}

/// Files of a saved rank on a node, without their folder, and their bytes.
fn files_of(root: &Path, name: &str, rank: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = root.join(name);
    let prefix = format!("r{rank:05}");
    let is_of_rank =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix);
    let of_rank = files(&folder).into_iter().filter(is_of_rank);
    of_rank
        .map(|path| (path.strip_prefix(&folder).unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn a_lost_node_is_restored_from_the_disks_of_the_others() {
    for placement in PLACEMENTS {
        for lost in 0..nodes(placement) {
            let mut cluster = Cluster::new(nodes(placement), false);
            save(&cluster, placement, 10);
            let name = save(&cluster, placement, 20);
            for rank in 0..placement.len() {
                let own = files_of(cluster.nvme(placement[rank]), &name, rank);
                let keeper = placement[partner(placement, rank).keeper];
                assert!(own.len() > 1 && own == files_of(cluster.nvme(keeper), &name, rank));
            }
            cluster.replace(lost);
            for restored in cluster.resume(placement) {
                assert_eq!((restored.step, restored.rejected), (20, Vec::new()), "{placement:?}");
                assert_eq!(restored.warnings, [""; 0]);
            }
        }
    }
}

/// A run may continue with other ranks on other nodes, and lose another node after the next save.
#[test]
fn copies_follow_the_placement_of_each_attempt() {
    let mut cluster = Cluster::new(3, false);
    let name = save(&cluster, &[0, 0, 1, 1, 2, 2], 10);
    let holding = |node| Holding::of(&open_node(cluster.nvme(node)), &name).ok();
    let assigned = assign(&[holding(0), holding(1)]).unwrap();
    assert_eq!(assigned, [[0, 4, 5], [1, 2, 3]], "its own, and those it keeps");
    assert!(assign(&[holding(0)]).unwrap_err().contains("first those of rank 2"));
    cluster.replace(1);
    assert_eq!(cluster.resume(&[2, 0, 1])[0].step, 10, "fewer ranks");
    save(&cluster, &[2, 0, 1], 20);
    cluster.replace(2);
    assert_eq!(cluster.resume(&[0, 1, 2, 2, 1, 0])[0].step, 20, "more ranks");
}

#[test]
fn what_a_node_keeps_for_another_is_retained_and_verified_like_its_own() {
    let cluster = Cluster::new(2, false);
    let names = [10, 20, 30].map(|step| save(&cluster, &[0, 1], step));
    for node in [0, 1] {
        let store = open_node(cluster.nvme(node));
        assert_eq!(store.presence(&names[2]).unwrap().ranks, 2);
        assert_eq!(store.contents(&names[2]).unwrap().ranks, 2);
        let verified = store.verify(&names[2]).unwrap();
        assert!(verified.problems.is_empty() && verified.bytes as usize == all_bytes());
        let report = store.apply_retention(1, 1, &NoFailpoints);
        assert_eq!((report.removed.len(), report.warnings), (2, Vec::new()));
        assert_eq!(crate::support::names(&store), names[2..]);
    }
    let copy = &files(&cluster.nvme(0).join(&names[2]).join("d00"));
    let copy = copy.iter().find(|path| path.to_string_lossy().contains("r00001-000")).unwrap();
    fs::remove_file(copy).unwrap();
    let store = open_node(cluster.nvme(0));
    assert_eq!(store.verify(&names[2]).unwrap().problems.len(), 1);
    assert_eq!(store.apply_retention(1, 1, &NoFailpoints).warnings.len(), 1, "not counted");
}

fn all_bytes() -> usize {
    model(0).iter().map(Vec::len).sum()
}

pub(crate) fn damage(root: &Path, name: &str, rank: usize) {
    let path = root
        .join(name)
        .join(format!("d{:02}/r{rank:05}-000.safetensors", rank / SMALL.ranks_per_folder));
    let mut bytes = fs::read(&path).unwrap();
    bytes[4100] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_file_is_read_from_the_other_copy_and_two_are_too_many() {
    for damaged_on in [0, 1] {
        let cluster = Cluster::new(2, false);
        save(&cluster, &[0, 1], 10);
        let name = save(&cluster, &[0, 1], 20);
        damage(cluster.nvme(damaged_on), &name, 0);
        let restored = cluster.resume(&[0, 1]);
        assert_eq!((restored[0].step, &restored[0].rejected[..]), (20, &[][..]));
        assert_eq!(restored[0].warnings.len(), 1, "{:?}", restored[0].warnings);
    }
    let mut cluster = Cluster::new(2, false);
    save(&cluster, &[0, 1], 10);
    let name = save(&cluster, &[0, 1], 20);
    damage(cluster.nvme(0), &name, 1);
    cluster.replace(1);
    let restored = cluster.resume(&[0, 1]);
    assert_eq!((restored[0].step, restored[0].rejected.len()), (10, 1), "an older one is whole");
}

/// All ranks of a node see its disk, and each could try a damaged file there.
#[test]
fn damage_is_one_warning_for_all_ranks_of_a_node() {
    const EIGHT: Placement<'static> = &[0, 0, 0, 0, 1, 1, 1, 1];
    let shares: fn(&Cluster) -> Vec<Restored> = |cluster| cluster.resume_shares(EIGHT, 20);
    let whole: fn(&Cluster) -> Vec<Restored> = |cluster| cluster.resume(EIGHT);
    for resume in [shares, whole] {
        let cluster = Cluster::new(2, false);
        let name = save(&cluster, EIGHT, 20);
        for (node, saved) in [(0, 0), (0, 1), (1, 6)] {
            damage(cluster.nvme(node), &name, saved);
        }
        let restored = resume(&cluster).remove(0);
        assert_eq!((restored.step, restored.rejected), (20, Vec::new()));
        assert_eq!(restored.warnings.len(), 3, "{:?}", restored.warnings);
        assert_eq!(resume(&cluster)[0].warnings, [""; 0], "all are rejected");
    }
}

/// The other files on the disk of a damaged one may be the only intact ones of their ranks.
#[test]
fn a_damaged_file_takes_no_intact_one_with_it() {
    let placement: Placement<'_> = &[0, 1, 2];
    let mut cluster = Cluster::new(3, false);
    save(&cluster, placement, 10);
    let name = save(&cluster, placement, 20);
    for rank in 0..3 {
        damage(cluster.nvme(rank), &name, rank); // each rank's own file, not its copy
    }
    let restored = cluster.resume(placement);
    assert_eq!((restored[0].step, restored[0].warnings.len()), (20, 3));
    for again in 0..2 {
        let restored = cluster.resume(placement);
        assert_eq!((restored[0].step, &restored[0].warnings[..]), (20, &[][..]), "{again}");
    }
    let store = open_node(cluster.nvme(0));
    assert_eq!(store.presence(&name).unwrap().ranks, 1, "the copy for another rank counts");
    let kept = store.apply_retention(1, 1, &NoFailpoints);
    assert_eq!((kept.removed.len(), kept.warnings.len()), (0, 0), "the older one is intact");
    let report = store.verify(&name).unwrap();
    assert!(report.is_rejected && report.problems.len() == 1, "{report:?}");

    damage(cluster.nvme(0), &name, 0); // the same bit: it is right again
    let report = store.verify(&name).unwrap();
    assert!(report.is_rejected && report.problems.is_empty(), "{report:?}");
    store.reinstate(&name).unwrap();
    assert!(!store.verify(&name).unwrap().is_rejected);
    assert_eq!(store.presence(&name).unwrap().ranks, 2);
    cluster.replace(partner(placement, 0).keeper);
    let restored = cluster.resume(placement);
    assert_eq!(
        (restored[0].step, restored[0].warnings.len()),
        (20, 0),
        "without the copy of rank 0"
    );
}

/// A kill may leave the manifest on some nodes only. Then the files on the others still count.
#[test]
fn a_commit_that_was_cut_between_nodes_is_completed() {
    let placement: Placement<'_> = &[0, 1, 2, 0, 1, 2];
    for lost in 0..3 {
        let mut cluster = Cluster::new(3, false);
        save(&cluster, placement, 10);
        let name = save(&cluster, placement, 20);
        fs::remove_file(cluster.nvme(2).join(&name).join("MANIFEST.json")).unwrap();
        assert_eq!(cluster.resume(placement)[0].step, 20);
        for node in 0..3 {
            let store = open_node(cluster.nvme(node));
            let report = store.apply_retention(2, 1, &NoFailpoints);
            assert_eq!((report.removed.len(), report.warnings), (1, Vec::new()), "node {node}");
            assert_eq!(crate::support::names(&store), [&name[..]], "node {node}");
        }
        cluster.replace(lost);
        let restored = cluster.resume(placement).remove(0);
        assert_eq!((restored.step, restored.warnings), (20, Vec::new()), "node {lost}");
        let committed: Vec<_> = (0..3).map(|node| node != lost).collect();
        assert_eq!(cluster.committed(&name), committed);
    }
}

/// A node completes a cut commit with those files that are intact there.
#[test]
fn a_damaged_file_does_not_keep_a_commit_from_being_completed() {
    let placement: Placement<'_> = &[0, 1, 2];
    let mut cluster = Cluster::new(3, false);
    let name = save(&cluster, placement, 10);
    let cut = cluster.nvme(2);
    fs::remove_file(cut.join(&name).join("MANIFEST.json")).unwrap();
    let of_rank_2 = cut.join(&name).join("d01/r00002-000.safetensors");
    fs::write(of_rank_2, "torn").unwrap();
    cluster.resume(placement);
    let store = open_node(cut);
    store.apply_retention(2, 1, &NoFailpoints);
    assert_eq!(store.presence(&name).unwrap().ranks, 1, "the copy of rank 1's files");
    cluster.replace(1);
    assert_eq!(cluster.resume(placement)[0].step, 10);
}

/// Network whose messages a test observes, or changes.
struct Tapped<'a> {
    peers: &'a Thread,
    /// Changes the payload of a gather.
    gather: &'a dyn Fn(&[u8]) -> Vec<u8>,
    /// Receives what is sent to one rank, and the deadline.
    send: &'a dyn Fn(&mut [u8], Instant),
}

impl Peers for Tapped<'_> {
    fn rank(&self) -> usize {
        self.peers.rank()
    }

    fn world(&self) -> usize {
        self.peers.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        self.peers.all_gather(&(self.gather)(payload))
    }

    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        deadline: Instant,
    ) -> Result<(), PeersError> {
        (self.send)(sent, deadline);
        self.peers.send_receive(to, sent, from, received, deadline)
    }
}

/// Saves over a network that flips a bit, and then over a good one.
fn save_over_noise(offset: usize, named: &str) {
    let cluster = Cluster::new(2, false);
    let good = save(&cluster, &[0, 1], 10);
    on_ranks(2, |peers| {
        let flip = Cell::new((peers.rank() == 0).then_some(offset));
        let send = |sent: &mut [u8], _| {
            if let Some(offset) = flip.take() {
                sent[offset] ^= 16;
            }
        };
        let noisy = Tapped { peers, gather: &<[u8]>::to_vec, send: &send };
        let store = Arc::new(open_node(cluster.nvme(peers.rank())));
        let mut saver = rank_saver(&store, &[0, 1], peers);
        saver::start(&mut saver, 20, peers, no_veto(), NoFailpoints);
        let error = saver.finish(&noisy, &mut |_| ()).unwrap_err();
        let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
        assert_eq!((failures.len(), failures[0].rank), (1, 1), "{failures:?}");
        assert!(failures[0].reason.contains(named), "{offset}: {failures:?}");
        saver.finish_afterwards();
        assert_eq!(names(&store), [&good[..]], "nothing is left of it");
        saver::start(&mut saver, 30, peers, no_veto(), NoFailpoints);
        assert_eq!(saver.finish(&noisy, &mut |_| ()).unwrap().unwrap().step, 30);
    });
}

#[test]
fn a_byte_that_changes_in_flight_fails_the_save_and_no_other() {
    let cluster = Cluster::new(2, false);
    let name = save(&cluster, &[0, 1], 10);
    let own = files_of(cluster.nvme(0), &name, 0);
    let index_bytes = own.last().unwrap().1.len();
    let stream_bytes: usize = own.iter().map(|(_, bytes)| bytes.len()).sum();
    save_over_noise(30, "r00000.idx.json");
    save_over_noise(index_bytes + 100, "r00000-000.safetensors: byte 0");
    save_over_noise(index_bytes + own[0].1.len() + 4096 + 250, "r00000-001.safetensors: byte 4296");
    save_over_noise(stream_bytes - 1, ".safetensors: byte");
}

/// Bytes of two ranks whose files are larger than small staging memory, and differ in size.
const LARGE: [usize; 2] = [13 << 20, 3 << 20];

fn large_saver(root: &Path, rank: usize, staging_bytes: u64, timeout: Duration) -> Saver {
    let store = open_node(root).with_options(checkpoint::Options {
        file_bytes_max: 5 << 20,
        chunk_bytes: 3 << 20,
        ..checkpoint::Options::default()
    });
    let tensor = |part| TensorBox::whole(&format!("{rank} {part}"), Dtype::U8, &[LARGE[rank] / 4]);
    let staging = Staging::new(staging_bytes, &Allocator::host());
    Saver::new(Arc::new(store), rank, (0..4).map(tensor).collect(), staging, timeout)
        .with_partner(Some(partner(&[0, 1], rank)))
}

fn start_large(
    saver: &mut Saver,
    rank: usize,
    step: usize,
    failpoints: impl Failpoints + Send + Sync + 'static,
) {
    let bytes = |part| {
        let byte = |index: usize| ((index * (step + part)) >> 7) as u8;
        (0..LARGE[rank] / 4).map(byte).collect()
    };
    let model = Box::new(Model((0..4).map(bytes).collect()));
    saver.start(request(step as u64, 1, state(0)), model, no_veto(), Box::new(failpoints));
}

#[test]
fn large_files_take_several_rounds() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let rank = peers.rank();
        let mut saver = large_saver(cluster.nvme(rank), rank, 0, LONG);
        for step in [10, 20] {
            start_large(&mut saver, rank, step, NoFailpoints);
            let mut advanced = 0;
            let report = loop {
                while !saver.is_ready() {
                    std::thread::yield_now();
                }
                advanced += 1;
                if let Some(report) = saver.advance(peers).unwrap() {
                    break report;
                }
            };
            assert_eq!(advanced, 3 + 4, "write, copy and publish; 13 MiB in rounds of 4 MiB");
            peers.all_gather(&[]).unwrap();
            for saved in [0, 1] {
                let [own, copy] = [saved, 1 - saved]
                    .map(|node| files_of(cluster.nvme(node), &report.checkpoint, saved));
                assert_eq!(own.len(), if saved == 0 { 5 } else { 2 });
                assert!(own == copy);
            }
        }
    });
}

/// Two messages make a round: the second one has no deadline of its own.
#[test]
fn a_round_has_one_deadline() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let rank = peers.rank();
        let deadlines = RefCell::new(Vec::new());
        let send = |_: &mut [u8], deadline| deadlines.borrow_mut().push(deadline);
        let tapped = Tapped { peers, gather: &<[u8]>::to_vec, send: &send };
        let mut saver = large_saver(cluster.nvme(rank), rank, 16 << 20, LONG);
        start_large(&mut saver, rank, 10, NoFailpoints);
        saver.finish(&tapped, &mut |_| ()).unwrap();
        let deadlines = deadlines.into_inner();
        assert_eq!(deadlines.len(), 4, "13 MiB in rounds of 8 MiB");
        assert!(deadlines[0] == deadlines[1] && deadlines[2] == deadlines[3], "{deadlines:?}");
        assert!(deadlines[1] < deadlines[2], "{deadlines:?}");
    });
}

/// Returns a vote for one byte less than the rank has written; other payloads as they are.
fn short_vote(payload: &[u8]) -> Vec<u8> {
    let text = str::from_utf8(payload).unwrap();
    let field = "\"stored_bytes\":";
    let Some((before, rest)) = text.split_once(field) else { return payload.to_vec() };
    let digits = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap();
    let bytes = rest[..digits].parse::<u64>().unwrap() - 1;
    format!("{before}{field}{bytes}{}", &rest[digits..]).into_bytes()
}

#[test]
fn a_copy_that_ends_before_its_last_byte_fails_the_save() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let store = Arc::new(open_node(cluster.nvme(peers.rank())));
        let mut saver = rank_saver(&store, &[0, 1], peers);
        saver::start(&mut saver, 10, peers, no_veto(), NoFailpoints);
        let peers = Tapped { peers, gather: &short_vote, send: &|_, _| () };
        let error = saver.finish(&peers, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("-001.safetensors"), "{error}");
    });
}

#[test]
fn nodes_with_the_same_disk_are_not_each_other_s_partners() {
    let disk = tempfile::tempdir().unwrap();
    let results = on_ranks(2, |peers| save_rank(disk.path(), &[0, 1], 10, peers, NoFailpoints));
    for result in results {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("both nodes have the same disk"), "{error}");
    }
}

#[test]
fn a_copy_that_cannot_be_written_fails_the_save_on_all_ranks() {
    let cluster = Cluster::new(2, false);
    save(&cluster, &[0, 1], 10);
    let failures = on_ranks(2, |peers| {
        let faults = match peers.rank() {
            0 => Faults::none(),
            _ => Faults::new("r00000-001.safetensors", Damage::RefusedWrites, 1),
        };
        let store = faulty::open(cluster.nvme(peers.rank()), &faults);
        let store = Arc::new(store.with_scope(checkpoint::Scope::Node));
        let mut saver = rank_saver(&store, &[0, 1], peers);
        saver::start(&mut saver, 20, peers, no_veto(), NoFailpoints);
        let error = saver.finish(peers, &mut |_| ()).unwrap_err();
        let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
        failures
    });
    for failures in failures {
        assert_eq!((failures.len(), failures[0].rank), (1, 1));
        assert!(failures[0].reason.contains("r00000-001.safetensors"), "{failures:?}");
    }
    assert_eq!(cluster.resume(&[0, 1])[0].step, 10);
}

/// Removes a file as soon as its rank has written everything.
struct Removes(Option<PathBuf>);

impl Failpoints for Removes {
    fn hit(&self, failpoint: Failpoint) {
        if let (Failpoint::IndexBeforeVote, Some(path)) = (failpoint, &self.0) {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_file_that_is_gone_before_it_is_copied_fails_the_save_and_no_other() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let root = cluster.nvme(peers.rank());
        let store = Arc::new(open_node(root));
        let mut saver = rank_saver(&store, &[0, 1], peers);
        let file = root.join("s000000010-a0001-00000001/d00/r00001-000.safetensors");
        let removes = Removes((peers.rank() == 1).then_some(file));
        saver::start(&mut saver, 10, peers, no_veto(), removes);
        let error = saver.finish(peers, &mut |_| ()).unwrap_err();
        let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
        assert_eq!((failures.len(), failures[0].rank), (1, 1), "{failures:?}");
        // Rank 0 had read what it would have sent: its staging memory is whole again.
        for step in [20, 30] {
            saver::start(&mut saver, step, peers, no_veto(), NoFailpoints);
            assert_eq!(saver.finish(peers, &mut |_| ()).unwrap().unwrap().step, step);
        }
    });
}

/// Hangs at a failpoint of the copy, as a disk may.
struct HungCopy(Hung);

impl Failpoints for HungCopy {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::MidPartnerCopy {
            self.0.hit(Failpoint::BeforeShard);
        }
    }
}

#[test]
fn a_hung_copy_fails_saves_until_the_disk_answers() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let storage = Hung::default();
        storage.set(peers.rank() == 1);
        let store = Arc::new(open_node(cluster.nvme(peers.rank())));
        let timeout = Duration::from_millis(300);
        let partner = Some(partner(&[0, 1], peers.rank()));
        let mut saver = saver::saver(&store, peers, timeout).with_partner(partner);
        for (step, named) in [(10, "the copy of another rank's files"), (20, "earlier save")] {
            saver::start(&mut saver, step, peers, no_veto(), HungCopy(storage.clone()));
            let error = saver.finish(peers, &mut |_| ()).unwrap_err();
            let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
            // Where the machine's own storage stalls, rank 0 is late as well.
            let of_rank_1 = failures.iter().find(|failure| failure.rank == 1);
            assert!(of_rank_1.is_some_and(|it| it.reason.contains(named)), "{failures:?}");
        }
        storage.set(false);
        let deadline = Instant::now() + LONG;
        for step in 30.. {
            saver::start(&mut saver, step, peers, no_veto(), HungCopy(storage.clone()));
            match saver.finish(peers, &mut |_| ()) {
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    });
    assert!(cluster.resume(&[0, 1])[0].step >= 30);
}

/// The memory that a late thread has filled for the next round is free again when it ends.
#[test]
fn a_copy_that_hangs_between_two_rounds_returns_its_memory() {
    let cluster = Cluster::new(2, false);
    on_ranks(2, |peers| {
        let rank = peers.rank();
        let storage = Hung::default();
        storage.set(rank == 0);
        let mut saver = large_saver(cluster.nvme(rank), rank, 0, Duration::from_secs(4));
        start_large(&mut saver, rank, 10, HungCopy(storage.clone()));
        let error = saver.finish(peers, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("the copy of another rank's files"), "{error}");
        storage.set(false);
        let deadline = Instant::now() + LONG;
        for step in 20.. {
            start_large(&mut saver, rank, step, HungCopy(storage.clone()));
            match saver.finish(peers, &mut |_| ()) {
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    });
}

/// The child: saves step 30, and dies.
fn die(argument: &str) {
    let mut fields = argument.splitn(3, ' ');
    let mut next = || fields.next().unwrap();
    let failpoint: Failpoint = next().parse().unwrap();
    let rank = next().parse().unwrap();
    let roots: Vec<_> = next().split(':').collect();
    on_ranks(2, |peers| {
        let own = peers.rank();
        let killer = Killer { rank, failpoint, own };
        save_rank(Path::new(roots[own]), &[0, 1], 30, peers, killer).map(|_| ())
    });
    panic!("survived {failpoint} on rank {rank}");
}

#[test]
fn a_kill_in_any_phase_and_a_lost_node_leave_the_newest_commit() {
    if let Some(argument) = child_argument() {
        return die(&argument);
    }
    let of_a_save = Failpoint::ALL.into_iter().filter(|it| *it != Failpoint::MidRetention);
    for failpoint in of_a_save.chain(Failpoint::PARTNER) {
        for rank in [0, 1] {
            let mut cluster = Cluster::new(2, false);
            save(&cluster, &[0, 1], 20);
            let roots = [0, 1].map(|node| cluster.nvme(node).display().to_string()).join(":");
            let argument = format!("{failpoint} {rank} {roots}");
            let test = "partner::a_kill_in_any_phase_and_a_lost_node_leave_the_newest_commit";
            let output = child(&["env"], test, &argument).output().unwrap();
            assert_eq!(output.status.signal(), Some(9), "{failpoint} on rank {rank}: {output:?}");
            // One node may have committed before the kill: it has all files.
            let newest = cluster.resume(&[0, 1])[0].step;
            let may_be_committed = failpoint as usize >= Failpoint::VoteBeforeManifest as usize;
            assert!(newest == 20 || newest == 30 && may_be_committed, "{failpoint} on rank {rank}");
            cluster.replace(rank);
            let left = cluster.resume(&[0, 1]).remove(0);
            assert!((20..=newest).contains(&left.step), "{failpoint} on rank {rank}: {left:?}");
            assert!(left.rejected.is_empty() && left.warnings.is_empty(), "{left:?}");
        }
    }
}
