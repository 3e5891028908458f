//! Ranks as threads, and a small model whose every byte is known.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use checkpoint::tier::{LocalTier, Scope, Tier};
use checkpoint::{
    Claim, Dtype, Error, Failpoints, Identity, NoFailpoints, Options, Part, PartMut, Peers,
    PeersError, Restored, RetentionReport, Save, SaveReport, Store, TensorBox,
};
use serde_json::{Value, json};

/// Rank of a world of threads.
pub(crate) struct Thread {
    rank: usize,
    senders: Vec<Sender<Vec<u8>>>,
    receivers: Vec<Receiver<Vec<u8>>>,
}

impl Peers for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.senders.len()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        for sender in &self.senders {
            sender.send(payload.to_vec()).map_err(|_| PeersError::new("a rank is gone"))?;
        }
        let receive = |receiver: &Receiver<Vec<u8>>| {
            receiver.recv_timeout(Duration::from_secs(20)).map_err(PeersError::new)
        };
        self.receivers.iter().map(receive).collect()
    }

    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        _deadline: Instant,
    ) -> Result<(), PeersError> {
        if !sent.is_empty() {
            self.senders[to].send(sent.to_vec()).map_err(PeersError::new)?;
        }
        if !received.is_empty() {
            let message = self.receivers[from].recv_timeout(Duration::from_secs(20));
            received.copy_from_slice(&message.map_err(PeersError::new)?);
        }
        Ok(())
    }
}

/// Runs a function on every rank of a world, and returns what each returned.
pub(crate) fn on_ranks<T: Send>(world: usize, run: impl Fn(&Thread) -> T + Sync) -> Vec<T> {
    let mut ranks: Vec<Thread> = (0..world)
        .map(|rank| Thread { rank, senders: Vec::new(), receivers: Vec::new() })
        .collect();
    for from in 0..world {
        for rank in &mut ranks {
            rank.receivers.push(channel().1);
        }
        for to in 0..world {
            let (sender, receiver) = channel();
            ranks[from].senders.push(sender);
            ranks[to].receivers[from] = receiver;
        }
    }
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |rank: Thread| scope.spawn(move || run(&rank));
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Sizes so small that every tensor has several chunks and every rank several files.
pub(crate) const SMALL: Options = Options {
    chunk_bytes: 100,
    file_bytes_max: 2000,
    ranks_per_folder: 2,
    visibility_timeout: Duration::from_millis(100),
    round_bytes: 1000,
};

pub(crate) fn tier(root: &Path) -> Arc<dyn Tier> {
    Arc::new(LocalTier::new(root))
}

pub(crate) fn open(root: &Path) -> Store {
    let store =
        Store::open(tier(root), &Identity::new("run-1", "workload-1")).expect("store opens");
    store.with_options(SMALL)
}

/// A store in a temporary folder.
pub(crate) struct TemporaryStore {
    folder: tempfile::TempDir,
    store: Store,
}

impl TemporaryStore {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = open(folder.path());
        Self { folder, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Deref for TemporaryStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The store on the tier of a node.
pub(crate) fn open_node(root: &Path) -> Store {
    open(root).with_scope(Scope::Node)
}

/// Names and shapes of a model with all special cases: a scalar, one row, an odd width.
pub(crate) fn shapes() -> Vec<(String, Vec<usize>)> {
    let shapes: [(&str, &[usize]); 6] = [
        ("ln_f.weight", &[13]),
        ("h.0.mlp.weight", &[31, 33]),
        ("h.0.cube", &[4, 6, 3]),
        ("temperature", &[]),
        ("wpe.weight", &[1, 90]),
        ("wte.weight", &[57, 12]),
    ];
    shapes.map(|(name, shape)| (name.to_owned(), shape.to_vec())).to_vec()
}

/// A byte of a tensor: SplitMix64's finalizer of seed, tensor and offset.
fn byte(seed: u64, tensor: usize, offset: usize) -> u8 {
    let mut z = seed << 48 ^ (tensor as u64) << 32 ^ offset as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as u8
}

/// All tensors of the state with this seed, as F32 bytes.
pub(crate) fn model(seed: u64) -> Vec<Vec<u8>> {
    let tensor = |(tensor, (_, shape)): (usize, &(String, Vec<usize>))| {
        let bytes = shape.iter().product::<usize>() * 4;
        (0..bytes).map(|offset| byte(seed, tensor, offset)).collect()
    };
    shapes().iter().enumerate().map(tensor).collect()
}

/// Returns world-independent state with floats that must be restored to the bit.
pub(crate) fn state(seed: u64) -> Value {
    json!({"cursor": seed, "sum": 0.1 + 0.2 + seed as f64, "tiny": 4.9e-324, "third": 1.0 / 3.0})
}

/// Splits a model into the parts of this rank: of all tensors, as one sequence of elements, an
/// equal piece.
pub(crate) fn parts<'a>(model: &'a [Vec<u8>], world: usize, rank: usize) -> Vec<Part<'a>> {
    let shapes = shapes();
    let total: usize = model.iter().map(|data| data.len() / 4).sum();
    let start = total * rank / world;
    let end = total * (rank + 1) / world;
    let mut parts = Vec::new();
    let mut first = 0; // number of the tensor's first element
    for ((name, shape), data) in shapes.iter().zip(model) {
        let inside = |element: usize| element.clamp(first, first + data.len() / 4) - first;
        let elements = inside(start)..inside(end);
        let mut rest = &data[elements.start * 4..elements.end * 4];
        for tensor in TensorBox::covering(name, Dtype::F32, shape, elements) {
            let (own, tail) = rest.split_at(tensor.size_bytes());
            parts.push(Part { tensor, data: own });
            rest = tail;
        }
        first += data.len() / 4;
    }
    parts
}

/// Save to make, and the number of checkpoints to keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) step: u64,
    pub(crate) attempt: u64,
    pub(crate) keep: usize,
}

/// Reports of a save and of the retention after it.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) save: SaveReport,
    pub(crate) retention: RetentionReport,
}

/// A request without a parent.
pub(crate) fn request(step: u64, attempt: u64, state: Value) -> Save {
    let claim = Claim { attempt, nonce: 1 };
    Save { step, claim, number: 0, state, parent: None }
}

/// Saves the model of seed `step` from one rank; rank 0 then applies retention.
pub(crate) fn save_rank(
    store: &Store,
    Plan { step, attempt, keep }: Plan,
    peers: &dyn Peers,
    failpoints: &dyn Failpoints,
) -> Result<Saved, Error> {
    let model = model(step);
    let parts = parts(&model, peers.world(), peers.rank());
    let save = store.save(&request(step, attempt, state(step)), &parts, peers, failpoints)?;
    let mut retention = RetentionReport::default();
    if peers.rank() == 0 {
        retention = store.apply_retention(attempt, keep, failpoints);
    }
    Ok(Saved { save, retention })
}

/// Saves from a world of threads, and returns the checkpoint's name.
pub(crate) fn save(store: &Store, world: usize, step: u64, attempt: u64, keep: usize) -> String {
    let plan = Plan { step, attempt, keep };
    let save = |peers: &Thread| save_rank(store, plan, peers, &NoFailpoints);
    let mut names = on_ranks(world, save).into_iter().map(|saved| {
        let saved = saved.expect("save succeeds");
        assert_eq!(saved.save.warnings, [""; 0]);
        assert_eq!(saved.retention.warnings, [""; 0]);
        saved.save.checkpoint
    });
    let name = names.next().expect("at least one rank");
    assert!(names.all(|other| other == name));
    name
}

/// Resumes the whole model on one rank, all of the bytes checked.
pub(crate) fn resume_rank(store: &Store, peers: &dyn Peers) -> Result<Option<Restored>, Error> {
    let mut data: Vec<Vec<u8>> = model(0).iter().map(|bytes| vec![0xAA; bytes.len()]).collect();
    let restored = store.resume(&mut whole_parts(&mut data), peers)?;
    if let Some(restored) = &restored {
        assert_eq!(data, model(restored.step), "all bytes of step {}", restored.step);
        assert_eq!(restored.state, state(restored.step));
    }
    Ok(restored)
}

/// The whole model as parts to fill.
pub(crate) fn whole_parts(data: &mut [Vec<u8>]) -> Vec<PartMut<'_>> {
    let shapes = shapes();
    let pairs = shapes.iter().zip(data);
    pairs
        .map(|((name, shape), data)| PartMut {
            tensor: TensorBox::whole(name, Dtype::F32, shape),
            data,
        })
        .collect()
}

/// Resumes a world of threads, all of the bytes checked; rank 0's result.
pub(crate) fn resume(store: &Store, world: usize) -> Restored {
    let restored = on_ranks(world, |peers| resume_rank(store, peers));
    let mut restored = restored.into_iter().map(|result| result.expect("resumes").expect("found"));
    let first = restored.next().expect("at least one rank");
    assert!(restored.all(|other| other.checkpoint == first.checkpoint));
    first
}

/// Names of everything in the folder that is a checkpoint by name, newest first.
pub(crate) fn names(store: &Store) -> Vec<String> {
    store.list().expect("lists").into_iter().map(|listed| listed.name).collect()
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The environment variable that turns a test into the child that it starts.
const CHILD: &str = "CHECKPOINT_TEST_CHILD";

/// The argument of a test that runs as a child.
pub(crate) fn child_argument() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Returns a command that runs one test of this program as a child, with a command in front.
pub(crate) fn child(wrapper: &[&str], test: &str, argument: &str) -> Command {
    let program = std::env::current_exe().expect("own path");
    let mut command_line = wrapper.iter().map(Into::into).collect::<Vec<std::ffi::OsString>>();
    command_line.push(program.into());
    let mut command = Command::new(&command_line[0]);
    command.args(&command_line[1..]).args([test, "--exact", "--nocapture"]).env(CHILD, argument);
    command
}
