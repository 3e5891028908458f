//! Promotion to another tier: by several ranks, from one folder or one for each, and past slow
//! ranks, kills, damage, retention and a target that is down.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use checkpoint::promotion::{
    Holding, Promoter, PromoterOptions, Route, RouteStatus, Share, assign,
};
use checkpoint::{Failpoint, Failpoints, NoFailpoints, Status, Store};

use crate::faulty::{self, Damage, Faults};
use crate::support::*;

const LONG: Duration = Duration::from_secs(60);

const OPTIONS: PromoterOptions = PromoterOptions {
    bytes_per_second_max: None,
    stall_timeout: LONG,
    retry_pause_min: Duration::from_millis(5),
    retry_pause_max: Duration::from_millis(20),
};

/// Two tiers in a temporary folder.
struct Tiers {
    folder: tempfile::TempDir,
    from: Arc<Store>,
    to: Arc<Store>,
}

impl Tiers {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = Arc::new(open(&folder.path().join("from")));
        let to = Arc::new(open(&folder.path().join("to")));
        Self { folder, from, to }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(key)
    }

    fn start(&self, share: Share) -> Promoter {
        start(&self.from, &self.to, share, OPTIONS, NoFailpoints)
    }

    /// Promotes with a world of so many ranks, and waits for it.
    fn promote(&self, world: usize, checkpoint: &str) -> Vec<RouteStatus> {
        let ranks: Vec<_> = shares(world).map(|share| self.start(share)).collect();
        let holding = Holding::of(&self.from, checkpoint).ok();
        let assigned = assign(&vec![holding; world]).unwrap();
        for (rank, saved_ranks) in ranks.iter().zip(assigned) {
            rank.submit_restored(checkpoint, 0, saved_ranks).unwrap();
        }
        finish(&ranks)
    }

    /// Runs something while the target cannot be reached.
    fn without_target<T>(&self, run: impl FnOnce() -> T) -> T {
        fs::rename(self.path("to"), self.path("away")).unwrap();
        fs::write(self.path("to"), "not a folder").unwrap();
        let result = run();
        fs::remove_file(self.path("to")).unwrap();
        fs::rename(self.path("away"), self.path("to")).unwrap();
        result
    }

    /// Checks that the target has a checkpoint with exactly the files of the source.
    fn assert_same(&self, checkpoint: &str) {
        let content = |root: &str| {
            let root = self.path(root).join(checkpoint);
            let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_owned();
            let read = |path: PathBuf| (relative(&path), fs::read(path).unwrap());
            files(&root).into_iter().map(read).collect::<Vec<_>>()
        };
        assert!(content("from") == content("to"), "{checkpoint}");
    }
}

/// The ranks of a new attempt.
fn shares(world: usize) -> impl Iterator<Item = Share> {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(1);
    let attempt = ATTEMPTS.fetch_add(1, Relaxed);
    (0..world).map(move |rank| Share { rank, world, attempt })
}

const ALONE: Share = Share { rank: 0, world: 1, attempt: 1 };

fn start(
    from: &Arc<Store>,
    to: &Arc<Store>,
    share: Share,
    options: PromoterOptions,
    failpoints: impl Failpoints + Send + Sync + 'static,
) -> Promoter {
    let route = route(from, to, 0);
    Promoter::start(vec![route], share, options, Arc::new(failpoints)).unwrap()
}

fn route(from: &Arc<Store>, to: &Arc<Store>, keep: usize) -> Route {
    Route { from: Arc::clone(from), to: Arc::clone(to), name: "shared".to_owned(), keep }
}

fn submit_all(promoters: Vec<Promoter>, checkpoint: &str) -> Vec<Promoter> {
    promoters.iter().for_each(|promoter| promoter.submit(checkpoint, 0).unwrap());
    promoters
}

/// Waits for all ranks, and returns how their routes are doing.
fn finish(promoters: &[Promoter]) -> Vec<RouteStatus> {
    let deadline = Instant::now() + LONG;
    for promoter in promoters {
        assert!(promoter.finish(deadline), "{:?}", promoter.status());
    }
    promoters.iter().map(status).collect()
}

fn status(promoter: &Promoter) -> RouteStatus {
    promoter.status().remove(0)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes of what ranks copy of a checkpoint: all but the manifest.
fn bytes_to_send(folder: &Path) -> u64 {
    let paths = files(folder).into_iter().filter(|path| !path.ends_with("MANIFEST.json"));
    paths.map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// Bytes of complete shards, which no later attempt sends again.
fn bytes_of_shards(folder: &Path) -> u64 {
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|name| name == "safetensors");
    let paths = files(folder).into_iter().filter(is_shard);
    paths.map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn flip_last_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Stops the first thread that reaches a failpoint until it is released.
struct Gate {
    failpoint: Failpoint,
    reached: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
}

/// The test's side of a [`Gate`]. Dropped, it releases all.
struct GateControl {
    reached: Receiver<()>,
    _release: Sender<()>,
}

impl Gate {
    fn new(failpoint: Failpoint) -> (Self, GateControl) {
        let (sender, reached) = channel();
        let (release, receiver) = channel();
        let gate = Self { failpoint, reached: Mutex::new(sender), released: Mutex::new(receiver) };
        (gate, GateControl { reached, _release: release })
    }
}

impl Failpoints for Gate {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == self.failpoint {
            self.reached.lock().unwrap().send(()).ok(); // the test waits for the first one only
            self.released.lock().unwrap().recv().unwrap_err();
        }
    }
}

impl GateControl {
    fn wait(&self) {
        self.reached.recv_timeout(LONG).unwrap();
    }
}

#[test]
fn all_ranks_copy_their_files_once() {
    for [saved, ranks] in [[3, 3], [3, 2], [2, 3], [3, 1]] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, saved, 10, 1, 0);
        let statuses = tiers.promote(ranks, &name);
        tiers.assert_same(&name);
        assert_eq!(resume(&tiers.to, 2).step, 10);
        let bytes: u64 = statuses.iter().map(|status| status.bytes).sum();
        assert_eq!(bytes, bytes_to_send(&tiers.path("from").join(&name)));
        assert_eq!((statuses[0].durable_step, statuses[0].failures), (Some(10), 0));
        assert_eq!(statuses[0].tier, "shared");
        let again = tiers.promote(ranks, &name);
        assert_eq!(again.iter().map(|status| status.bytes).sum::<u64>(), 0, "nothing is left");
        assert!(again.iter().all(|status| status.durable_step == Some(10)), "{again:?}");
    }
}

#[test]
fn each_node_copies_what_it_has() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 3, 10, 1, 0);
    let nodes: Vec<_> = (0..3).map(|rank| tiers.path(&format!("node{rank}"))).collect();
    for path in files(&tiers.path("from").join(&name)) {
        let key = path.strip_prefix(tiers.path("from")).unwrap();
        for (rank, node) in nodes.iter().enumerate() {
            let file = key.file_name().unwrap().to_str().unwrap();
            if file == "MANIFEST.json" || file.starts_with(&format!("r{rank:05}")) {
                fs::create_dir_all(node.join(key).parent().unwrap()).unwrap();
                fs::copy(&path, node.join(key)).unwrap();
            }
        }
    }
    let stores: Vec<_> = nodes.iter().map(|node| Arc::new(open_node(node))).collect();
    let start_on =
        |share: Share| start(&stores[share.rank], &tiers.to, share, OPTIONS, NoFailpoints);
    finish(&submit_all(shares(3).map(start_on).collect(), &name));
    tiers.assert_same(&name);
    assert_eq!(resume(&tiers.to, 3).step, 10);

    // A restart brings the ranks to other nodes, and one more to a node that has nothing.
    fs::remove_dir_all(tiers.path("to")).unwrap();
    let new = Arc::new(open_node(&tiers.path("node3")));
    let stores_then = [&stores[2], &stores[0], &new, &stores[1]];
    let assigned = assign(&stores_then.map(|store| Holding::of(store, &name).ok())).unwrap();
    assert_eq!(assigned, [vec![2], vec![0], vec![], vec![1]]);
    let to = Arc::new(open(&tiers.path("to")));
    let promoters = shares(4).zip(assigned).map(|(share, saved_ranks)| {
        let promoter = start(stores_then[share.rank], &to, share, OPTIONS, NoFailpoints);
        promoter.submit_restored(&name, 0, saved_ranks).unwrap();
        promoter
    });
    let statuses = finish(&promoters.collect::<Vec<_>>());
    assert!(statuses.iter().all(|status| !status.is_failing), "{statuses:?}");
    tiers.assert_same(&name);

    let lost = save(&tiers.from, 3, 20, 1, 0);
    let statuses = finish(&submit_all(shares(3).map(start_on).collect(), &lost));
    assert!(statuses[0].last_error.is_some(), "no node has it");
    assert_eq!(names(&tiers.to), [name]);
}

#[test]
fn the_newest_is_promoted_when_the_target_is_back() {
    let tiers = Tiers::new();
    let saved = [10, 20, 30].map(|step| save(&tiers.from, 2, step, 1, 0));
    let ranks: Vec<_> = shares(2).map(|share| tiers.start(share)).collect();
    tiers.without_target(|| {
        for name in &saved {
            ranks.iter().for_each(|rank| rank.submit(name, 0).unwrap());
            // One is given up because another waits, and one without being tried.
            wait_until("rank 0 tries", || status(&ranks[0]).failures > 0);
        }
        let fails = |rank: &Promoter| status(rank).is_failing && status(rank).failures > 2;
        wait_until("all ranks fail", || ranks.iter().all(fails));
        let error = status(&ranks[0]).last_error.unwrap();
        assert!(error.contains("Not a directory"), "{error}");
        assert!(!ranks[0].finish(Instant::now() + Duration::from_millis(1)));
        assert!(ranks[0].is_failing(0));
    });
    let statuses = finish(&ranks);
    tiers.assert_same(&saved[2]);
    assert_eq!(names(&tiers.to), saved[2..]);
    assert_eq!((statuses[0].dropped, statuses[0].durable_step), (2, Some(30)));
    assert!(statuses.iter().all(|status| !status.is_failing), "{statuses:?}");
    assert!(!ranks[0].is_failing(0));
    assert_eq!(resume(&tiers.to, 2).step, 30);
}

#[test]
fn a_slow_rank_copies_what_rank_0_has_chosen() {
    let tiers = Tiers::new();
    let saved = [10, 20, 30].map(|step| save(&tiers.from, 2, step, 1, 0));
    let mut shares = shares(2);
    let leader = tiers.start(shares.next().unwrap());
    leader.submit(&saved[0], 0).unwrap();
    wait_until("it is announced", || tiers.path("to/PROMOTION.json").exists());
    leader.submit(&saved[1], 0).unwrap();
    leader.submit(&saved[2], 0).unwrap();
    let follower = tiers.start(shares.next().unwrap());
    follower.submit(&saved[2], 0).unwrap();
    let statuses = finish(&[leader, follower]);
    assert_eq!(names(&tiers.to), [saved[2].clone(), saved[0].clone()]);
    tiers.assert_same(&saved[0]);
    tiers.assert_same(&saved[2]);
    assert_eq!(statuses[0].dropped, 1);
}

/// Kills the whole process when one rank reaches a failpoint.
struct Killer(Failpoint);

impl Failpoints for Killer {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == self.0 {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

/// The child: promotes with two ranks, of which one dies.
fn die(argument: &str) {
    let mut fields = argument.splitn(4, ' ');
    let mut next = || fields.next().unwrap();
    let failpoint = next().parse().unwrap();
    let rank: usize = next().parse().unwrap();
    let name = next();
    let root = Path::new(next());
    let [from, to] = ["from", "to"].map(|tier| Arc::new(open(&root.join(tier))));
    let start_rank = |share: Share| {
        if share.rank == rank {
            start(&from, &to, share, OPTIONS, Killer(failpoint))
        } else {
            start(&from, &to, share, OPTIONS, NoFailpoints)
        }
    };
    finish(&submit_all(shares(2).map(start_rank).collect(), name));
    panic!("survived {failpoint} on rank {rank}");
}

#[test]
fn a_killed_promotion_goes_on() {
    if let Some(argument) = child_argument() {
        return die(&argument);
    }
    let [shard, manifest] = Failpoint::PROMOTION;
    for (failpoint, rank) in [(shard, 0), (shard, 1), (manifest, 0)] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        let argument = format!("{failpoint} {rank} {name} {}", tiers.folder.path().display());
        let test = "promotion::a_killed_promotion_goes_on";
        let output = child(&["env"], test, &argument).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{failpoint} on rank {rank}: {output:?}");
        assert_eq!(tiers.to.list().unwrap()[0].status, Status::Uncommitted);
        let sent = bytes_of_shards(&tiers.path("to").join(&name));
        assert!(sent > 0);

        let statuses = tiers.promote(2, &name);
        tiers.assert_same(&name);
        let total = bytes_to_send(&tiers.path("from").join(&name));
        let bytes: u64 = statuses.iter().map(|status| status.bytes).sum();
        assert_eq!(bytes, total - sent, "{failpoint} on rank {rank}");
        assert_eq!(resume(&tiers.to, 2).step, 10);
    }
}

#[test]
fn a_promoter_that_is_dropped_does_not_hang_and_another_goes_on() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 1, 10, 1, 0);
    let (gate, control) = Gate::new(Failpoint::MidPromotion);
    let promoter = start(&tiers.from, &tiers.to, ALONE, OPTIONS, gate);
    promoter.submit(&name, 0).unwrap();
    control.wait();
    let sent = status(&promoter).bytes;
    drop(promoter); // its thread hangs in the failpoint
    let index = tiers.path("to").join(&name).join("d00/r00000.idx.json");
    assert!(!index.exists());
    let statuses = tiers.promote(1, &name);
    tiers.assert_same(&name);
    let total = bytes_to_send(&tiers.path("from").join(&name));
    assert_eq!(statuses[0].bytes, total - sent);
    drop(control);
}

#[test]
fn damage_on_the_source_is_not_promoted() {
    for rank in 0..2 {
        let tiers = Tiers::new();
        let bad = save(&tiers.from, 2, 10, 1, 0);
        let shard = format!("d00/r{rank:05}-001.safetensors");
        flip_last_byte(&tiers.path("from").join(&bad).join(shard));
        let statuses = tiers.promote(2, &bad);
        assert_eq!(names(&tiers.to), [""; 0], "given up, and removed");
        let error = statuses[0].last_error.as_ref().unwrap();
        assert!(error.contains("CRC64/NVME") && error.contains("-001.safetensors"), "{error}");
        assert_eq!(error.contains("rank 1"), rank == 1, "{error}");
        assert!(statuses[0].is_failing && statuses[0].durable_step.is_none());

        let good = save(&tiers.from, 2, 20, 1, 0);
        assert!(!tiers.promote(2, &good)[0].is_failing);
        assert_eq!(names(&tiers.to), [good]);
    }
}

#[test]
fn a_rank_that_sends_nothing_is_named() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 2, 10, 1, 0);
    let options = PromoterOptions { stall_timeout: Duration::from_millis(50), ..OPTIONS };
    let share = shares(2).next().unwrap();
    let leader = start(&tiers.from, &tiers.to, share, options, NoFailpoints);
    let statuses = finish(&submit_all(vec![leader], &name));
    let error = statuses[0].last_error.as_ref().unwrap();
    assert!(error.contains("rank 1: has sent no file for 50ms"), "{error}");
    assert_eq!(names(&tiers.to), [""; 0]);
    tiers.promote(2, &name);
    tiers.assert_same(&name);
}

#[test]
fn no_more_is_sent_than_the_limit_allows() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 1, 10, 1, 0);
    let options = PromoterOptions { bytes_per_second_max: Some(10), ..OPTIONS };
    let promoter = start(&tiers.from, &tiers.to, ALONE, options, NoFailpoints);
    promoter.submit(&name, 0).unwrap();
    let started = tiers.path("to").join(&name).join("d00/r00000-000.safetensors.tmp");
    wait_until("it has started", || started.exists());
    assert!(!promoter.finish(Instant::now() + Duration::from_millis(100)));
    assert_eq!(status(&promoter).bytes, 0, "a header of 4096 bytes waits for minutes");
    drop(promoter);
    assert!(!started.exists(), "an upload that is not finished leaves nothing");
}

#[test]
fn a_newer_attempt_is_not_disturbed() {
    let tiers = Tiers::new();
    let [old, new] = [10, 20].map(|step| save(&tiers.from, 2, step, 1, 0));
    let of_attempt = |attempt| (0..2).map(move |rank| Share { rank, world: 2, attempt });
    let newer = of_attempt(2).map(|share| tiers.start(share)).collect();
    finish(&submit_all(newer, &new));
    let announced = fs::read(tiers.path("to/PROMOTION.json")).unwrap();
    let zombie = of_attempt(1).take(1).map(|share| tiers.start(share)).collect();
    let error = finish(&submit_all(zombie, &old)).remove(0).last_error.unwrap();
    assert!(error.contains("fenced"), "{error}");
    assert_eq!(names(&tiers.to), [new]);
    assert_eq!(fs::read(tiers.path("to/PROMOTION.json")).unwrap(), announced);
}

#[test]
fn retention_leaves_what_is_being_promoted() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 1, 10, 1, 0);
    let (gate, control) = Gate::new(Failpoint::MidPromotion);
    let promoter = start(&tiers.from, &tiers.to, ALONE, OPTIONS, gate);
    promoter.submit(&name, 0).unwrap();
    control.wait();
    let newer = [20, 30, 40].map(|step| save(&tiers.from, 1, step, 1, 1));
    assert_eq!(names(&tiers.from), [newer[2].clone(), name.clone()]);
    drop(control);
    finish(&[promoter]);
    tiers.assert_same(&name);
    let newest = save(&tiers.from, 1, 50, 1, 1);
    assert_eq!(names(&tiers.from), [newest], "it is promoted");
}

#[test]
fn a_source_that_someone_removes_is_given_up() {
    for rank in 0..2 {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        let (gate, control) = Gate::new(Failpoint::MidPromotion);
        let mut gate = Some(gate);
        let mut start_rank = |share: Share| match gate.take_if(|_| share.rank == rank) {
            Some(gate) => start(&tiers.from, &tiers.to, share, OPTIONS, gate),
            None => tiers.start(share),
        };
        let ranks = submit_all(shares(2).map(&mut start_rank).collect(), &name);
        control.wait();
        let other_process = open(&tiers.path("from"));
        let newer = save(&other_process, 2, 20, 1, 1);
        assert_eq!(names(&tiers.from), std::slice::from_ref(&newer));
        drop(control);
        let statuses = finish(&ranks);
        let error = statuses[0].last_error.as_ref().unwrap();
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(names(&tiers.to), [""; 0]);
        finish(&submit_all(ranks, &newer));
        tiers.assert_same(&newer);
        assert_eq!(names(&tiers.to), [newer]);
    }
}

#[test]
fn the_target_keeps_the_newest_and_no_leftovers() {
    let tiers = Tiers::new();
    let saved = [10, 20, 30].map(|step| save(&tiers.from, 1, step, 1, 0));
    let leftovers = ["s000000005-a0001-0000000a", "s000000099-a0001-0000000a"];
    for leftover in leftovers {
        fs::create_dir_all(tiers.path("to").join(leftover).join("d00")).unwrap();
    }
    let routes = vec![route(&tiers.from, &tiers.to, 2)];
    let promoter = Promoter::start(routes, ALONE, OPTIONS, Arc::new(NoFailpoints)).unwrap();
    let mut promoters = vec![promoter];
    for name in &saved {
        promoters = submit_all(promoters, name);
        assert!(!finish(&promoters)[0].is_failing);
    }
    let expected = [leftovers[1].to_owned(), saved[2].clone(), saved[1].clone()];
    assert_eq!(names(&tiers.to), expected, "what is newer may be on its way");
    assert_eq!(fs::read_to_string(tiers.path("to/LATEST")).unwrap(), format!("{}\n", saved[2]));
}

#[test]
fn a_copy_that_a_restore_rejected_is_replaced() {
    let tiers = Tiers::new();
    let old = save(&tiers.from, 2, 10, 1, 0);
    let new = save(&tiers.from, 2, 20, 1, 0);
    tiers.promote(2, &old);
    tiers.promote(2, &new);
    flip_last_byte(&tiers.path("to").join(&new).join("d00/r00001-000.safetensors"));
    assert_eq!(resume(&tiers.to, 2).step, 10);
    assert_eq!(tiers.to.list().unwrap()[0].status, Status::Rejected);
    tiers.promote(2, &new);
    tiers.assert_same(&new);
    assert_eq!(resume(&tiers.to, 2).step, 20);
}

#[test]
fn what_is_pinned_is_pinned_on_the_target() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 2, 1, 1, 0);
    tiers.from.pin(&name).unwrap();
    tiers.promote(2, &name);
    assert!(tiers.to.presence(&name).unwrap().is_pinned);
}

#[test]
fn a_stale_shard_of_equal_length_is_replaced() {
    for ranks in [1, 2] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        let shard = format!("{name}/d00/r00000-000.safetensors");
        let size = fs::metadata(tiers.path("from").join(&shard)).unwrap().len();
        fs::create_dir_all(tiers.path("to").join(&name).join("d00")).unwrap();
        fs::write(tiers.path("to").join(&shard), vec![0; size as usize]).unwrap();
        let statuses = tiers.promote(ranks, &name);
        tiers.assert_same(&name);
        let bytes: u64 = statuses.iter().map(|status| status.bytes).sum();
        assert_eq!(bytes, bytes_to_send(&tiers.path("from").join(&name)));
    }
}

/// Leaves the files of an earlier attempt that was killed before the manifest.
fn leave_all_but_the_manifest(tiers: &Tiers, name: &str) {
    for path in files(&tiers.path("from").join(name)) {
        if !path.ends_with("MANIFEST.json") {
            let key = path.strip_prefix(tiers.path("from")).unwrap();
            let target = tiers.path("to").join(key);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn a_byte_that_flipped_before_the_commit_is_found() {
    for ranks in [1, 2] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        leave_all_but_the_manifest(&tiers, &name);
        let shard = tiers.path("to").join(&name).join("d00/r00001-000.safetensors");
        flip_last_byte(&shard);
        let statuses = tiers.promote(ranks, &name);
        tiers.assert_same(&name);
        let bytes: u64 = statuses.iter().map(|status| status.bytes).sum();
        let folder = tiers.path("from").join(&name);
        let indexes = bytes_to_send(&folder) - bytes_of_shards(&folder);
        let indexes = if ranks == 1 { 0 } else { indexes }; // removed by rank 0
        assert_eq!(bytes, fs::metadata(shard).unwrap().len() + indexes, "the good parts stay");
        assert!(tiers.to.verify(&name).unwrap().problems.is_empty());
    }
}

#[test]
fn an_index_of_an_earlier_attempt_does_not_vouch() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 2, 10, 1, 0);
    leave_all_but_the_manifest(&tiers, &name);
    let options = PromoterOptions { stall_timeout: Duration::from_millis(50), ..OPTIONS };
    let share = shares(2).next().unwrap();
    let leader = start(&tiers.from, &tiers.to, share, options, NoFailpoints);
    let statuses = finish(&submit_all(vec![leader], &name));
    let error = statuses[0].last_error.as_ref().unwrap();
    assert!(error.contains("rank 1: has sent no file"), "{error}");
    assert_eq!(names(&tiers.to), [""; 0], "not committed for the files that rank 1 left");
}

#[test]
fn an_index_with_other_bytes_is_replaced() {
    for ranks in [1, 2] {
        let tiers = Tiers::new();
        let [other, name] = [10, 20].map(|step| save(&tiers.from, 2, step, 1, 0));
        leave_all_but_the_manifest(&tiers, &name);
        let index = "d00/r00001.idx.json";
        let stale = tiers.path("from").join(other).join(index);
        fs::copy(stale, tiers.path("to").join(&name).join(index)).unwrap();
        tiers.promote(ranks, &name);
        tiers.assert_same(&name);
    }
}

#[test]
fn a_committed_copy_that_lost_a_file_is_completed() {
    for ranks in [1, 2] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        tiers.promote(ranks, &name);
        for file in ["d00/r00001-000.safetensors", "d00/r00001.idx.json", "MANIFEST.json"] {
            fs::write(tiers.path("to").join(&name).join(file), "torn").unwrap();
            let statuses = tiers.promote(ranks, &name);
            tiers.assert_same(&name);
            let torn = statuses[0].last_error.as_ref().unwrap();
            assert!(torn.contains(file) && !statuses[0].is_failing, "{torn}");
        }
    }
}

/// A restore has found damage in it, and rejected one rank: that is replaced, and counts again.
#[test]
fn a_committed_copy_with_a_rejected_rank_is_completed() {
    for ranks in [1, 2] {
        let tiers = Tiers::new();
        let name = save(&tiers.from, 2, 10, 1, 0);
        tiers.promote(ranks, &name);
        let copy = tiers.path("to").join(&name);
        let shard = copy.join("d00/r00001-000.safetensors");
        let mut bytes = fs::read(&shard).unwrap();
        bytes[4100] ^= 4;
        fs::write(shard, bytes).unwrap();
        fs::write(copy.join("r00001.rejected"), "").unwrap();
        tiers.promote(ranks, &name);
        tiers.assert_same(&name);
    }
}

/// A copy that cannot be read now may be intact: it is neither taken for damaged nor written again.
#[test]
fn a_committed_copy_that_cannot_be_read_now_stays() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 1, 10, 1, 0);
    tiers.promote(1, &name);
    let shard = tiers.path("to").join(&name).join("d00/r00000-000.safetensors");
    let written = fs::metadata(&shard).unwrap().modified().unwrap();
    let faults = Faults::new("r00000-000.safetensors", Damage::TimedOut, 3);
    let to = Arc::new(faulty::open(&tiers.path("to"), &faults));
    let promoter = start(&tiers.from, &to, shares(1).next().unwrap(), OPTIONS, NoFailpoints);
    let statuses = finish(&submit_all(vec![promoter], &name));
    assert_eq!(faults.left(), 0);
    assert!(statuses[0].failures > 0 && statuses[0].bytes == 0, "{statuses:?}");
    assert_eq!(fs::metadata(&shard).unwrap().modified().unwrap(), written);
}

#[test]
fn a_target_that_fails_midway_and_recovers_gets_the_rest() {
    let tiers = Tiers::new();
    let name = save(&tiers.from, 1, 10, 1, 0);
    let (gate, control) = Gate::new(Failpoint::MidPromotion);
    let promoter = start(&tiers.from, &tiers.to, ALONE, OPTIONS, gate);
    promoter.submit(&name, 0).unwrap();
    control.wait();
    tiers.without_target(|| {
        drop(control);
        wait_until("it fails", || status(&promoter).failures > 2);
    });
    let statuses = finish(&[promoter]);
    tiers.assert_same(&name);
    assert_eq!(statuses[0].bytes, bytes_to_send(&tiers.path("from").join(&name)), "all once");
}

#[test]
fn a_source_that_is_read_badly_once_is_promoted() {
    for damage in Damage::ALL {
        for file in ["MANIFEST.json", "r00000.idx.json", "r00000-000.safetensors"] {
            let tiers = Tiers::new();
            let name = save(&tiers.from, 1, 10, 1, 0);
            let faults = Faults::new(file, damage, 2);
            let from = Arc::new(faulty::open(&tiers.path("from"), &faults));
            let promoter = start(&from, &tiers.to, ALONE, OPTIONS, NoFailpoints);
            let statuses = finish(&submit_all(vec![promoter], &name));
            tiers.assert_same(&name);
            assert_eq!(statuses[0].failures, 0, "{file}: {:?}", statuses[0].last_error);
            assert_eq!(from.take_read_warnings().len(), 1, "{file}");
        }
    }
}
