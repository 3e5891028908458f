//! What a rank does in each kind of job.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::allocations::steady_state_allocates_nothing;
use crate::refuse;
use yardstick_collectives::contract::{self, Terms, failures, values};
use yardstick_collectives::{Channel, Collective, Error, Mpi, MpiOptions, Operation};

const TERMS: Terms =
    Terms { chunk_elements_max: CHUNK, patience: Duration::from_secs(60), nodes: &[] };

const CHUNK: usize = 1000;

/// Patience with a rank that will not come.
const SHORT: Duration = Duration::from_secs(1);

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everybody keeps the contract.
    Contract,
    /// Everybody adds up buffers that take several pieces of the exchange's own size.
    LargeSums,
    /// The last rank stays away.
    StayAway,
    /// Rank 0 has a buffer too short for the message.
    MessageTooLong,
    /// Rank 0 has a buffer too long for the message.
    MessageTooShort,
    /// The message is too long for rank 0's buffer by a whole chunk.
    ChunkTooMany,
    /// The message is too short for rank 0's buffer by a whole chunk.
    ChunkTooFew,
    /// Rank 1 never opens the backend.
    NeverOpen,
    /// Everybody leaves at once.
    Abandon,
    /// Rank 0 closes, rank 1 does not.
    CloseAlone,
    /// Rank 1 is killed.
    Killed,
    /// Rank 1 is killed, and rank 0 lives on.
    Survive,
    /// Rank 1 is stopped in the middle of its work.
    Hang,
    /// Rank 1 does not want shared memory.
    Disagree,
    /// Rank 0, which is to make the node's memory, may not.
    NoMaker,
    /// Rank 1 may not make memory, but find it.
    NoBuffers,
    /// Rank 1 may not open what rank 0 has made.
    NoFinder,
}

/// What the ranks of a node do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// They share memory.
    On,
    /// MPI carries everything.
    Off,
    /// They share memory, and each is on a node.
    Nodes(&'static [usize]),
}

impl Sharing {
    const VARIABLE: &str = "YARDSTICK_TEST_NODES";

    /// The same in the environment of a rank.
    pub(crate) fn tell(self, command: &mut Command) {
        match self {
            Self::On => command.env_remove(Self::VARIABLE),
            Self::Off => command.env(Self::VARIABLE, ""),
            Self::Nodes(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                command.env(Self::VARIABLE, nodes.join(","))
            }
        };
    }

    /// Each rank's; empty where they are of no interest.
    fn nodes(self) -> &'static [usize] {
        match self {
            Self::Nodes(nodes) => nodes,
            Self::On | Self::Off => &[],
        }
    }

    fn from_environment() -> Self {
        match std::env::var(Self::VARIABLE).ok().as_deref() {
            None => Self::On,
            Some("") => Self::Off,
            Some(nodes) => {
                let nodes: Vec<_> = nodes.split(',').map(|node| node.parse().unwrap()).collect();
                Self::Nodes(nodes.leak())
            }
        }
    }
}

const ALL: [Role; 17] = [
    Role::Contract,
    Role::LargeSums,
    Role::StayAway,
    Role::MessageTooLong,
    Role::MessageTooShort,
    Role::ChunkTooMany,
    Role::ChunkTooFew,
    Role::NeverOpen,
    Role::Abandon,
    Role::CloseAlone,
    Role::Killed,
    Role::Survive,
    Role::Hang,
    Role::Disagree,
    Role::NoMaker,
    Role::NoBuffers,
    Role::NoFinder,
];

impl Role {
    /// The role in the environment of a rank.
    pub(crate) fn from_environment() -> Option<Self> {
        let name = std::env::var("YARDSTICK_TEST_ROLE").ok()?;
        Some(*ALL.iter().find(|role| role.name() == name).unwrap())
    }

    /// Its name in the environment.
    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    /// Pieces have the size that the exchange gives them only where no limit cuts them shorter.
    fn chunk_elements_max(self) -> usize {
        match self {
            Self::LargeSums => MpiOptions::default().chunk_elements_max,
            _ => TERMS.chunk_elements_max,
        }
    }

    /// How rank 1 is lost.
    fn signal(self) -> &'static str {
        if self == Self::Hang { "-STOP" } else { "-KILL" }
    }

    /// Does what the role says, and writes `ok` for the test to read.
    pub(crate) fn play(self) {
        let sharing = Sharing::from_environment();
        let options = MpiOptions {
            chunk_elements_max: self.chunk_elements_max(),
            close_timeout: SHORT,
            node_shared: sharing != Sharing::Off && !(self == Self::Disagree && is_rank("1")),
            pretended_nodes: sharing.nodes().to_vec(),
            ..MpiOptions::default()
        };
        if self == Self::NeverOpen {
            return open_alone(options);
        }
        match self {
            Self::NoMaker if is_rank("0") => refuse::making_memory(),
            Self::NoBuffers if is_rank("1") => refuse::making_memory(),
            Self::NoFinder if is_rank("1") => refuse::opening_to_write(),
            _ => {}
        }
        let mpi = Mpi::open(options.clone()).unwrap();
        let again = Mpi::open(options);
        assert!(matches!(again, Err(Error::Start { .. })), "opened twice: {again:?}");
        match self {
            Self::Contract => {
                let shares = mpi.world() > 1 && sharing != Sharing::Off;
                keep_the_contract(mpi, shares, sharing.nodes(), None);
            }
            Self::LargeSums => add_up_large_buffers(mpi),
            Self::Disagree => keep_the_contract(mpi, false, &[], None),
            Self::NoMaker => keep_the_contract(mpi, false, &[], Some("rank 0 could not map it: ")),
            Self::NoBuffers => keep_the_contract(mpi, true, &[], Some("rank 1 could not share ")),
            Self::NoFinder => keep_the_contract(mpi, false, &[], Some("rank 1 could not map it: ")),
            Self::StayAway => stay_away(mpi, sharing == Sharing::On),
            Self::MessageTooLong => wrong_length(mpi, (3, 2)),
            Self::MessageTooShort => wrong_length(mpi, (3, 4)),
            Self::ChunkTooMany => wrong_length(mpi, (2 * CHUNK, CHUNK)),
            Self::ChunkTooFew => wrong_length(mpi, (CHUNK, 2 * CHUNK)),
            Self::Abandon => {
                failures::abandoning_is_final(&mpi, &TERMS);
                assert!(!mpi.memory_at_risk(), "nothing was under way");
                finish(mpi, 2);
            }
            Self::CloseAlone => close_alone(mpi),
            Self::NeverOpen => unreachable!("it has returned"),
            Self::Killed | Self::Survive | Self::Hang => be_lost(self, mpi),
        }
    }
}

/// What a launcher told; MPI is not open yet.
fn is_rank(wanted: &str) -> bool {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];
    names.iter().any(|name| std::env::var(name).is_ok_and(|rank| rank == wanted))
}

/// Keeps it with shared memory or without, and with a warning about what the system refused.
fn keep_the_contract(mpi: Mpi, shares: bool, nodes: &'static [usize], warning: Option<&str>) {
    let library = mpi.library().unwrap();
    assert_eq!(library.ends_with("; node: shared memory"), shares, "{library}");
    assert_eq!(mpi.shares_memory(), shares);
    contract::run_all(&mpi, &Terms { nodes, ..TERMS });
    let (told, refused) = (mpi.warning().unwrap_or_default(), refuse::told());
    match warning {
        Some(named) => assert!(told.contains(named) && told.contains(&refused), "{told}"),
        None => assert_eq!(told, ""),
    }
    steady_state_allocates_nothing(&mpi);
    let rank = mpi.rank();
    mpi.close(Instant::now() + TERMS.patience).unwrap();
    write(rank, "ok");
}

/// The longest are 20 times as long: a rank's part has more than 5 MiB on two ranks, and on three
/// more than 6 of the shorter pieces there, so that every place is taken again.
fn add_up_large_buffers(mpi: Mpi) {
    values::sums_have_the_order_of_ranks(&mpi, &Terms { chunk_elements_max: 1 << 17, ..TERMS });
    let rank = mpi.rank();
    mpi.close(Instant::now() + TERMS.patience).unwrap();
    write(rank, "ok");
}

fn stay_away(mpi: Mpi, shares: bool) {
    let world = mpi.world();
    let before = cpu_time();
    let named = failures::staying_away_is_a_deadline(&mpi, SHORT);
    if mpi.rank() + 1 == world {
        std::thread::sleep(2 * SHORT + Duration::from_secs(2));
    } else {
        let used = cpu_time() - before;
        assert!(used < SHORT / 2, "waiting took {used:?} of CPU time in {SHORT:?}");
        let missing = if shares { vec![world - 1] } else { Vec::new() };
        assert_eq!(named, missing, "shared memory tells who did not come");
        assert_eq!(mpi.memory_at_risk(), !shares, "MPI gives nothing back, our own thread does");
        finish(mpi, world - 1);
    }
}

fn wrong_length(mpi: Mpi, lens: (usize, usize)) {
    failures::a_message_of_wrong_length_is_an_error(&mpi, lens, &TERMS);
    finish(mpi, 1);
}

/// Whoever comes first waits, and learns that the other did not come: the test names the ranks,
/// because the launcher's variables are different everywhere.
fn open_alone(options: MpiOptions) {
    let folder = PathBuf::from(std::env::var("YARDSTICK_TEST_FOLDER").unwrap());
    if std::fs::File::create_new(folder.join("first")).is_err() {
        return std::thread::sleep(4 * SHORT);
    }
    let start = Instant::now();
    let result = Mpi::open(MpiOptions { open_timeout: SHORT, ..options });
    let Err(error) = result else { panic!("opened alone: {result:?}") };
    assert!(matches!(error, Error::OpenDeadline { .. }), "opened alone: {error}");
    assert!(error.is_peer_failure(), "{error}");
    assert!(start.elapsed() < SHORT + Duration::from_secs(2));
    write(0, "ok");
    std::process::exit(5);
}

fn close_alone(mpi: Mpi) {
    if mpi.rank() == 1 {
        std::thread::sleep(3 * SHORT);
        return finish(mpi, 2);
    }
    let start = Instant::now();
    let result = mpi.close(start + SHORT);
    assert!(matches!(result, Err(Error::Dead { .. })), "closed alone: {result:?}");
    assert!(start.elapsed() < SHORT + Duration::from_secs(2));
    write(0, "ok");
}

/// Rank 1 dies or stops in the middle of a run of all-reduces; rank 0 goes on until it notices.
fn be_lost(role: Role, mpi: Mpi) {
    let rank = mpi.rank();
    assert_eq!(mpi.world(), 2, "one to be lost, one to notice");
    let (memory, shares) = (shared_memory(), mpi.shares_memory());
    assert_eq!(memory.ends_with("(deleted)"), shares, "it has no name: {memory}");
    write(rank, &format!("pid {}", std::process::id()));
    let group: &dyn Collective = &mpi;
    group.barrier(Instant::now() + TERMS.patience).unwrap();
    let patience = if role == Role::Killed { TERMS.patience } else { SHORT };
    let (mut reached, mut own) =
        (group.buffer(5000, Instant::now() + TERMS.patience).unwrap(), vec![0f32; 5000]);
    let is_reached = role == Role::Hang;
    let buffer = if is_reached { &mut reached[..] } else { &mut own[..] };
    for round in 0.. {
        if rank == 1 && round == 5 {
            let (pid, signal) = (std::process::id().to_string(), role.signal());
            Command::new("kill").args([signal, &pid]).status().unwrap();
        }
        let start = Instant::now();
        let operation = Operation::AllReduceSum;
        let result = group.run(Channel::Data, operation, buffer, start + patience);
        if let Err(error) = result {
            assert!(round >= 5, "too early: {error}");
            let Error::Deadline { peers, .. } = &error else { panic!("a lost peer: {error}") };
            assert_eq!(*peers, if shares { vec![1] } else { Vec::new() }, "it is named");
            assert!(start.elapsed() < patience + Duration::from_secs(2));
            let at_risk = is_reached || !shares;
            assert_eq!(mpi.memory_at_risk(), at_risk, "slots never put it at risk, MPI does");
            break;
        }
    }
    finish(mpi, 1);
}

/// What the system calls the memory that this process shares with its node.
fn shared_memory() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find(|line| line.contains("yardstick-node")).unwrap_or_default().to_owned()
}

/// The end of a rank that failed: the drop does not hang, and the process ends by itself with the
/// exit code of a lost peer, once `ranks` of them have written what the test wants to read (an
/// mpirun ends all others as soon as one exits so).
fn finish(mpi: Mpi, ranks: usize) {
    let (rank, start) = (mpi.rank(), Instant::now());
    drop(mpi);
    let took = start.elapsed();
    assert!(took < SHORT + Duration::from_secs(2), "the drop took {took:?}");
    write(rank, "ok");
    let is_ok = |rank: &usize| std::fs::read_to_string(place(*rank)).is_ok_and(|text| text == "ok");
    while (0..ranks).filter(is_ok).count() < ranks && start.elapsed() < 3 * SHORT {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::exit(5);
}

fn place(rank: usize) -> PathBuf {
    PathBuf::from(std::env::var("YARDSTICK_TEST_FOLDER").unwrap()).join(rank.to_string())
}

fn write(rank: usize, text: &str) {
    std::fs::write(place(rank), text).unwrap();
}

/// What this process has computed, in ticks of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap(); // the name before may hold spaces
    let ticks = |index| fields.split_whitespace().nth(index).unwrap().parse::<u64>().unwrap();
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}
