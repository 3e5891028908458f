//! Ranks as threads, and a small model whose every byte is known.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use checkpoint::{
    Dtype, Error, Identity, Observer, Options, Part, PartMut, Peers, PeersError, Restored, Save,
    SaveReport, Silent, Store, TensorBox, Tidied, cut,
};
use serde_json::{Value, json};

/// One rank of a world of threads.
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
    patience: Duration::from_millis(100),
};

pub(crate) fn open(root: &Path) -> Store {
    let store = Store::open(root, &Identity::new("run-1", "workload-1")).expect("store opens");
    store.with_options(SMALL)
}

/// Names and shapes of a model with everything that is awkward: a scalar, one row, an odd width.
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

/// A byte of a tensor: SplitMix64's finalizer of seed, tensor and place.
fn byte(seed: u64, tensor: usize, place: usize) -> u8 {
    let mut z = seed << 48 ^ (tensor as u64) << 32 ^ place as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as u8
}

/// All tensors of the state with this seed, as F32 bytes.
pub(crate) fn model(seed: u64) -> Vec<Vec<u8>> {
    let tensor = |(tensor, (_, shape)): (usize, &(String, Vec<usize>))| {
        let bytes = shape.iter().product::<usize>() * 4;
        (0..bytes).map(|place| byte(seed, tensor, place)).collect()
    };
    shapes().iter().enumerate().map(tensor).collect()
}

/// World-independent state with floats that must come back to the bit.
pub(crate) fn state(seed: u64) -> Value {
    json!({"cursor": seed, "sum": 0.1 + 0.2 + seed as f64, "tiny": 4.9e-324, "third": 1.0 / 3.0})
}

pub(crate) fn rank_state(rank: usize, seed: u64) -> Value {
    json!({"rank": rank, "seed": seed})
}

/// This rank's share of a model as parts: of all tensors, as one sequence of elements, an equal
/// piece.
pub(crate) fn parts<'a>(model: &'a [Vec<u8>], world: usize, rank: usize) -> Vec<Part<'a>> {
    let shapes = shapes();
    let total: usize = model.iter().map(|data| data.len() / 4).sum();
    let (start, end) = (total * rank / world, total * (rank + 1) / world);
    let (mut parts, mut first) = (Vec::new(), 0);
    for ((name, shape), data) in shapes.iter().zip(model) {
        let inside = |place: usize| place.clamp(first, first + data.len() / 4) - first;
        for share in cut(name, Dtype::F32, shape, inside(start)..inside(end)) {
            let bytes = share.elements.start * 4..share.elements.end * 4;
            parts.push(Part { tensor: share.tensor, data: &data[bytes] });
        }
        first += data.len() / 4;
    }
    parts
}

/// Saves the model of seed `step` from one rank; rank 0 then removes what is old.
pub(crate) fn save_rank(
    store: &Store,
    (step, epoch, keep): (u64, u64, usize),
    peers: &dyn Peers,
    observer: &dyn Observer,
) -> Result<(SaveReport, Tidied), Error> {
    let model = model(step);
    let parts = parts(&model, peers.world(), peers.rank());
    let (state, rank_state) = (&state(step), &rank_state(peers.rank(), step));
    let save = Save { step, epoch, parts: &parts, state, rank_state, parent: None, unable: None };
    let report = store.save(&save, peers, observer)?;
    let is_lead = peers.rank() == 0;
    let tidied = if is_lead { store.tidy(epoch, keep, observer) } else { Tidied::default() };
    Ok((report, tidied))
}

/// Saves from a world of threads, and returns the checkpoint's name.
pub(crate) fn save(store: &Store, world: usize, step: u64, epoch: u64, keep: usize) -> String {
    let save = |peers: &Thread| save_rank(store, (step, epoch, keep), peers, &Silent);
    let mut names = on_ranks(world, save).into_iter().map(|report| {
        let (report, tidied) = report.expect("save succeeds");
        assert_eq!(report.warnings, [""; 0]);
        assert_eq!(tidied.warnings, [""; 0]);
        report.checkpoint
    });
    let name = names.next().expect("at least one rank");
    assert!(names.all(|other| other == name));
    name
}

/// Room for the whole model, and what was restored into it.
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

/// What a test is told when it runs as a child.
pub(crate) fn child_argument() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// This test program, to run one test as a child, with a command in front.
pub(crate) fn child(wrapper: &[&str], test: &str, argument: &str) -> Command {
    let program = std::env::current_exe().expect("own path");
    let mut words = wrapper.iter().map(Into::into).collect::<Vec<std::ffi::OsString>>();
    words.push(program.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args([test, "--exact", "--nocapture"]).env(CHILD, argument);
    command
}
