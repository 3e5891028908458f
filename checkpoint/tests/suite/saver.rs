//! Saves in the background: of state that changes after its snapshot, through little memory, with
//! hung storage and with failures.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use checkpoint::{
    Error, Failpoint, Failpoints, Frozen, NoFailpoints, Peers, Saver, SingleRank, Snapshot,
    Staging, Store, Veto,
};
use device::Allocator;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::*;

/// A copy of the model of a seed, as one rank's state.
#[derive(Debug)]
pub(crate) struct Model(pub(crate) Vec<Vec<u8>>);

impl Model {
    pub(crate) fn of(seed: u64, world: usize, rank: usize) -> Self {
        let model = model(seed);
        Self(parts(&model, world, rank).iter().map(|part| part.data.to_vec()).collect())
    }
}

impl Frozen for Model {
    fn size_bytes(&self, index: usize) -> usize {
        self.0[index].len()
    }

    fn read(&mut self, index: usize, start: usize, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0[index][start..start + bytes.len()]);
        Ok(())
    }
}

pub(crate) fn no_veto() -> Veto {
    Box::new(|| Ok(()))
}

pub(crate) fn saver(store: &Arc<Store>, peers: &dyn Peers, timeout: Duration) -> Saver {
    let model = model(0);
    let parts = parts(&model, peers.world(), peers.rank());
    let boxes = parts.into_iter().map(|part| part.tensor).collect();
    let staging = Staging::new(0, &Allocator::host());
    Saver::new(Arc::clone(store), peers.rank(), boxes, staging, timeout)
}

pub(crate) fn start(
    saver: &mut Saver,
    step: u64,
    peers: &dyn Peers,
    veto: Veto,
    failpoints: impl Failpoints + Send + Sync + 'static,
) -> Snapshot {
    let model = Model::of(step, peers.world(), peers.rank());
    saver.start(request(step, 1, state(step)), Box::new(model), veto, Box::new(failpoints))
}

pub(crate) const LONG: Duration = Duration::from_secs(60);

#[test]
fn ranks_save_in_the_background_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    on_ranks(3, |peers| {
        let mut saver = saver(&store, peers, LONG);
        assert!(saver.finish(peers, &mut |_| ()).unwrap().is_none(), "nothing was started");
        for step in [10, 20] {
            let snapshot = start(&mut saver, step, peers, no_veto(), NoFailpoints);
            assert_eq!(saver.step_in_flight(), Some(step));
            snapshot.wait(Instant::now() + LONG);
            assert!(snapshot.has_ended());
            let report = saver.finish(peers, &mut |_| ()).unwrap().unwrap();
            assert_eq!((report.step, report.warnings), (step, Vec::new()));
        }
    });
    assert_eq!(resume(&store, 2).step, 20);
    assert_eq!(names(&store).len(), 2);
}

#[test]
fn a_veto_of_one_rank_is_reported_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    for veto_rank in [0, 1] {
        on_ranks(2, |peers| {
            let is_refused = peers.rank() == veto_rank;
            let reason = "its steps are not on the disk";
            let veto = move || if is_refused { Err(reason.to_owned()) } else { Ok(()) };
            let mut saver = saver(&store, peers, LONG);
            start(&mut saver, 10, peers, Box::new(veto), NoFailpoints);
            let error = saver.finish(peers, &mut |_| ()).unwrap_err();
            let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
            assert_eq!((failures.len(), failures[0].rank), (1, veto_rank));
            assert_eq!(failures[0].reason, reason);
            saver.finish_afterwards();
        });
        assert!(names(&store).is_empty(), "nothing is left of it");
    }
}

/// Storage that hangs until it is released.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hung(Arc<(Mutex<bool>, Condvar)>);

impl Hung {
    pub(crate) fn set(&self, is_hung: bool) {
        *self.0.0.lock().unwrap() = is_hung;
        self.0.1.notify_all();
    }
}

impl Failpoints for Hung {
    fn hit(&self, failpoint: Failpoint) {
        if failpoint == Failpoint::BeforeShard {
            let is_hung = self.0.0.lock().unwrap();
            drop(self.0.1.wait_while(is_hung, |is_hung| *is_hung).unwrap());
        }
    }
}

#[test]
fn hung_storage_fails_saves_on_all_ranks_until_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    on_ranks(2, |peers| {
        let storage = Hung::default();
        storage.set(peers.rank() == 1);
        let timeout = Duration::from_millis(300);
        let mut saver = saver(&store, peers, timeout);
        for step in [10, 20] {
            start(&mut saver, step, peers, no_veto(), storage.clone());
            let error = saver.finish(peers, &mut |_| ()).unwrap_err();
            let Error::SaveFailed { failures, .. } = error else { panic!("{error}") };
            // Where the machine's own storage stalls, rank 0 is late as well.
            let of_rank_1 = failures.iter().find(|failure| failure.rank == 1);
            assert!(of_rank_1.is_some_and(|it| it.reason.contains("hung")), "{failures:?}");
        }
        storage.set(false);
        let deadline = Instant::now() + LONG;
        let mut step = 30;
        loop {
            start(&mut saver, step, peers, no_veto(), storage.clone());
            match saver.finish(peers, &mut |_| ()) {
                Ok(report) => break assert_eq!(report.unwrap().step, step),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            step += 1;
        }
    });
    assert!(resume(&store, 2).step >= 30);
}

/// The state is larger than the staging memory, and the writer waits: the state must change before
/// all of it is copied.
#[test]
fn a_snapshot_that_is_too_late_fails_its_save_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()).with_options(checkpoint::Options::default()));
    let storage = Hung::default();
    let bytes = 20 << 20;
    let tensor = checkpoint::TensorBox::whole("w", checkpoint::Dtype::U8, &[bytes]);
    let staging = Staging::new(8 << 20, &Allocator::host());
    let failpoints = || Box::new(storage.clone());
    let mut saver = Saver::new(Arc::clone(&store), 0, vec![tensor], staging, LONG);
    storage.set(true);
    let state = || Box::new(Model(vec![vec![7; bytes]]));
    let snapshot =
        saver.start(request(10, 1, serde_json::json!(10)), state(), no_veto(), failpoints());
    snapshot.wait(Instant::now() + Duration::from_millis(100));
    storage.set(false);
    let error = saver.finish(&SingleRank, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("so slow"), "{error}");
    for step in [20, 30, 40] {
        let snapshot = saver.start(
            request(step, 1, serde_json::json!(step)),
            state(),
            no_veto(),
            failpoints(),
        );
        assert_eq!(saver.finish(&SingleRank, &mut |_| ()).unwrap().unwrap().bytes, bytes as u64);
        assert!(snapshot.has_ended());
    }
    let name = store.newest().unwrap().unwrap().name;
    assert!(store.verify(&name).unwrap().problems.is_empty());
}

/// The copy of the state would wait for memory that nothing frees any more.
#[test]
fn a_veto_ends_a_save_of_state_that_is_larger_than_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = 20 << 20;
    let tensor = checkpoint::TensorBox::whole("w", checkpoint::Dtype::U8, &[bytes]);
    let staging = Staging::new(0, &Allocator::host());
    let store = Arc::new(open(folder.path()));
    let mut saver = Saver::new(store, 0, vec![tensor], staging, Duration::from_secs(20));
    let state = Box::new(Model(vec![vec![7; bytes]]));
    let veto = Box::new(|| Err("its steps are not on the disk".to_owned()));
    saver.start(request(10, 1, serde_json::json!(10)), state, veto, Box::new(NoFailpoints));
    let error = saver.finish(&SingleRank, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("its steps are not on the disk"), "{error}");
}

/// The child: leaves no room for the stack of a thread while a save starts.
fn save_without_threads(root: &Path) {
    let store = Arc::new(open(root));
    let mut saver = saver(&store, &SingleRank, LONG);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some((kib + 512) << 10), ..limit }).unwrap();
    start(&mut saver, 10, &SingleRank, no_veto(), NoFailpoints);
    setrlimit(Resource::As, limit).unwrap();
    let error = saver.finish(&SingleRank, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("cannot start a thread for writer"), "{error}");
    start(&mut saver, 20, &SingleRank, no_veto(), NoFailpoints);
    assert_eq!(saver.finish(&SingleRank, &mut |_| ()).unwrap().unwrap().step, 20);
}

#[test]
fn a_thread_that_cannot_be_started_fails_its_save_and_no_other() {
    if let Some(root) = child_argument() {
        return save_without_threads(Path::new(&root));
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "saver::a_thread_that_cannot_be_started_fails_its_save_and_no_other";
    let output = child(&["env"], test, folder.path().to_str().unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
