//! Roles of the ranks in each kind of job.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::allocations::steady_state_allocates_nothing;
use support::seccomp;
use yardstick_collectives::contract::{self, Terms, failures, groups, values};
use yardstick_collectives::{Channel, Collective, Error, GroupPlan, Mpi, MpiOptions, Operation};

const TERMS: Terms = Terms {
    message_elements_max: MESSAGE,
    timeout: Duration::from_secs(60),
    nodes: &[],
    sums_by_node: false,
    has_one_order: false,
};

/// Elements of the longest message.
const MESSAGE: usize = 1000;

/// Timeout where a rank is absent.
const SHORT: Duration = Duration::from_secs(2);

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// All ranks keep the contract.
    Contract,
    /// All groups keep the contract.
    Groups,
    /// The last rank does not enter an operation of its group.
    AbsentMember,
    /// The first rank does not enter an operation of its group, which has one element.
    AbsentOwner,
    /// The first rank does not take part in grouped messages.
    AbsentPeer,
    /// All ranks sum buffers of several chunks of the largest size.
    LargeSums,
    /// The last rank does not enter an operation.
    Absent,
    /// Rank 0 has a buffer too short for the message.
    MessageTooLong,
    /// Rank 0 has a buffer too long for the message.
    MessageTooShort,
    /// Rank 0 receives one message, rank 1 sends several.
    ManyTooLong,
    /// Rank 0 receives several messages, rank 1 sends one.
    ManyTooShort,
    /// Rank 1 never opens the backend.
    NeverOpen,
    /// All ranks abandon the group.
    Abandon,
    /// Rank 0 closes, rank 1 does not.
    CloseAlone,
    /// Rank 1 is killed.
    Killed,
    /// Rank 1 is killed, and rank 0 lives on.
    Survive,
    /// Rank 1 is stopped in the middle of its work.
    Hang,
    /// Rank 1 has shared memory switched off.
    Disagree,
    /// Rank 1 may not create shared memory.
    NoCreation,
    /// Rank 1 may not create shared memory any more when the backend is open.
    NoLaterCreation,
    /// Rank 1 may not open the memory of others.
    NoMapping,
}

/// Sharing of memory among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All ranks share memory.
    On,
    /// MPI moves all data.
    Off,
    /// Ranks of each of these simulated nodes share memory.
    Nodes(&'static [usize]),
}

impl Sharing {
    const VARIABLE: &str = "YARDSTICK_TEST_NODES";

    /// Sets it in the environment of ranks.
    pub(crate) fn set_in(self, command: &mut Command) {
        match self {
            Self::On => command.env_remove(Self::VARIABLE),
            Self::Off => command.env(Self::VARIABLE, ""),
            Self::Nodes(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                command.env(Self::VARIABLE, nodes.join(","))
            }
        };
    }

    /// Simulated nodes by rank; empty where they do not matter.
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

const ALL: [Role; 21] = [
    Role::Contract,
    Role::Groups,
    Role::AbsentMember,
    Role::AbsentOwner,
    Role::AbsentPeer,
    Role::LargeSums,
    Role::Absent,
    Role::MessageTooLong,
    Role::MessageTooShort,
    Role::ManyTooLong,
    Role::ManyTooShort,
    Role::NeverOpen,
    Role::Abandon,
    Role::CloseAlone,
    Role::Killed,
    Role::Survive,
    Role::Hang,
    Role::Disagree,
    Role::NoCreation,
    Role::NoLaterCreation,
    Role::NoMapping,
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

    /// Chunks have their largest size only where messages have.
    fn message_elements_max(self) -> usize {
        match self {
            Self::LargeSums => MpiOptions::default().message_elements_max,
            _ => TERMS.message_elements_max,
        }
    }

    /// Signal by which rank 1 is lost.
    fn signal(self) -> &'static str {
        if self == Self::Hang { "-STOP" } else { "-KILL" }
    }

    /// Plays the role, and writes `ok` for the test to read.
    pub(crate) fn play(self) {
        let sharing = Sharing::from_environment();
        let options = MpiOptions {
            message_elements_max: self.message_elements_max(),
            close_timeout: SHORT,
            shared_memory: sharing != Sharing::Off && !(self == Self::Disagree && is_rank("1")),
            simulated_nodes: sharing.nodes().to_vec(),
            ..MpiOptions::default()
        };
        if self == Self::NeverOpen {
            return open_alone(options);
        }
        match self {
            Self::NoCreation if is_rank("0") => seccomp::deny_memfd_create(),
            Self::NoMapping if is_rank("1") => seccomp::deny_opening_to_write(),
            _ => {}
        }
        let mpi = Mpi::open(options.clone()).unwrap();
        let second = Mpi::open(options);
        assert!(matches!(second, Err(Error::Start { .. })), "opened twice: {second:?}");
        if self == Self::NoLaterCreation && mpi.rank() == 1 {
            seccomp::deny_memfd_create();
        }
        match self {
            Self::Contract => {
                let shares = mpi.world() > 1 && sharing != Sharing::Off;
                keep_the_contract(mpi, shares, sharing.nodes(), None);
            }
            Self::Groups => keep_the_contract_in_groups(mpi),
            Self::AbsentMember => {
                groups::an_absent_member_is_named(&mpi, 3, 100, SHORT);
                finish_together(mpi);
            }
            Self::AbsentOwner => {
                groups::an_absent_member_is_named(&mpi, 0, 1, SHORT);
                finish_together(mpi);
            }
            Self::AbsentPeer => {
                groups::an_absent_peer_of_grouped_messages_is_named(&mpi, 0, 100, SHORT);
                finish_together(mpi);
            }
            Self::LargeSums => sum_large_buffers(mpi),
            Self::Disagree => keep_the_contract(mpi, false, &[], None),
            Self::NoCreation => {
                keep_the_contract(mpi, false, &[], Some("rank 0 could not create shared memory: "));
            }
            Self::NoLaterCreation => {
                keep_the_contract(mpi, true, &[], Some("rank 1 could not create shared memory: "));
            }
            Self::NoMapping => {
                keep_the_contract(mpi, false, &[], Some("rank 1 could not map the shared memory"));
            }
            Self::Absent => be_absent(mpi, sharing == Sharing::On),
            Self::MessageTooLong => wrong_length(mpi, 3, 2),
            Self::MessageTooShort => wrong_length(mpi, 3, 4),
            Self::ManyTooLong => wrong_length(mpi, 2 * MESSAGE, MESSAGE),
            Self::ManyTooShort => wrong_length(mpi, MESSAGE, 2 * MESSAGE),
            Self::Abandon => {
                failures::abandoning_is_final(&mpi, &TERMS);
                assert!(!mpi.memory_at_risk(), "nothing was in flight");
                finish(mpi, 2);
            }
            Self::CloseAlone => close_alone(mpi),
            Self::NeverOpen => unreachable!("it has returned"),
            Self::Killed | Self::Survive | Self::Hang => be_lost(self, mpi),
        }
    }
}

/// Returns whether the launcher gave this process the rank: MPI is not open yet.
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
    let found = mpi.warning().unwrap_or_default();
    match warning {
        Some(text) => {
            assert!(found.contains(text) && found.contains(&seccomp::denied_message()), "{found}")
        }
        None => assert_eq!(found, ""),
    }
    steady_state_allocates_nothing(&mpi);
    let rank = mpi.rank();
    mpi.close(Instant::now() + TERMS.timeout).unwrap();
    write(rank, "ok");
}

fn keep_the_contract_in_groups(mpi: Mpi) {
    groups::every_group_keeps_the_contract(&mpi, &TERMS);
    groups::overlapping_groups_are_independent(&mpi, &TERMS);
    groups::one_pair_in_two_groups(&mpi, &TERMS);
    groups::every_grid_keeps_the_contract(&mpi, &TERMS);
    let rank = mpi.rank();
    // The pair of number 1, in the other order: in a world of two that number is free.
    let pair = GroupPlan { dimension: "shard", number: 1, ranks: vec![rank | 1, rank & !1] };
    let refused = mpi.subgroup(&pair).err().map(|error| error.to_string()).unwrap_or_default();
    let is_refused = refused.contains("has the number of the tensor group of ranks");
    assert_eq!(is_refused, mpi.world() > 2, "{refused}");
    steady_state_allocates_nothing(&*mpi.subgroup(&GroupPlan { number: 10, ..pair }).unwrap());
    mpi.close(Instant::now() + TERMS.timeout).unwrap();
    write(rank, "ok");
}

/// The longest buffers are 20 times as long, so that a rank's part has more chunks than the
/// pipeline has entries: more than 5 of 1 MiB on two ranks, more than 6 of half a MiB on three.
fn sum_large_buffers(mpi: Mpi) {
    values::sums_have_the_order_of_ranks(&mpi, &Terms { message_elements_max: 1 << 17, ..TERMS });
    let rank = mpi.rank();
    mpi.close(Instant::now() + TERMS.timeout).unwrap();
    write(rank, "ok");
}

fn be_absent(mpi: Mpi, shares: bool) {
    let world = mpi.world();
    let before = cpu_time();
    let named = failures::an_absent_rank_is_a_deadline(&mpi, SHORT);
    if mpi.rank() + 1 == world {
        await_outcomes(0..world - 1, |text| text == "ok");
    } else {
        let used = cpu_time() - before;
        assert!(used < SHORT / 2, "waiting took {used:?} of CPU time in {SHORT:?}");
        let missing = vec![world - 1];
        assert_eq!(named, missing, "who is absent; shared memory: {shares}");
        assert!(mpi.memory_at_risk(), "MPI cannot cancel what it has received");
        finish(mpi, world - 1);
    }
}

fn wrong_length(mpi: Mpi, sender_len: usize, receiver_len: usize) {
    failures::a_message_of_wrong_length_is_an_error(&mpi, &TERMS, sender_len, receiver_len);
    finish(mpi, 1);
}

/// The first process waits, and gets an error because the other does not open the backend. They
/// number themselves, because launchers' variables differ.
fn open_alone(options: MpiOptions) {
    let folder = PathBuf::from(std::env::var("YARDSTICK_TEST_FOLDER").unwrap());
    if std::fs::File::create_new(folder.join("first")).is_err() {
        return await_outcomes(0..1, |text| text == "ok");
    }
    let result = Mpi::open(MpiOptions { open_timeout: SHORT, ..options });
    let Err(error) = result else { panic!("opened alone: {result:?}") };
    assert!(matches!(error, Error::OpenDeadline { .. }), "opened alone: {error}");
    assert!(error.is_peer_failure(), "{error}");
    write(0, "ok");
    std::process::exit(5);
}

fn close_alone(mpi: Mpi) {
    if mpi.rank() == 1 {
        await_outcomes(0..1, |text| text == "ok");
        return finish(mpi, 2);
    }
    let start = Instant::now();
    let result = mpi.close(start + SHORT);
    assert!(matches!(result, Err(Error::Dead { .. })), "closed alone: {result:?}");
    assert!(start.elapsed() >= SHORT, "{:?}", start.elapsed());
    write(0, "ok");
}

/// Rank 1 dies or stops in the middle of a series of operations; rank 0 continues until it notices.
///
/// In a shared buffer peers write to other ranks' buffers in an all-reduce alone.
fn be_lost(role: Role, mpi: Mpi) {
    let rank = mpi.rank();
    assert_eq!(mpi.world(), 2, "one is lost, one notices");
    let memory = shared_memory();
    let shares = mpi.shares_memory();
    assert_eq!(memory.ends_with("(deleted)"), shares, "it has no name: {memory}");
    write(rank, &format!("pid {}", std::process::id()));
    let group: &dyn Collective = &mpi;
    group.barrier(Instant::now() + TERMS.timeout).unwrap();
    let allocator = device::Allocator::host();
    let mut buffer = group.buffer::<f32>(&allocator, 5000, Instant::now() + TERMS.timeout).unwrap();
    let is_exposed = role == Role::Hang;
    let operation = if is_exposed { Operation::AllReduceSum } else { Operation::AllGather };
    for round in 0.. {
        if rank == 1 && round == 5 {
            let pid = std::process::id().to_string();
            Command::new("kill").args([role.signal(), &pid]).status().unwrap();
        }
        // Before the loss, a rank may be late on a busy machine.
        let is_short = role != Role::Killed && round >= 5;
        let timeout = if is_short { SHORT } else { TERMS.timeout };
        let start = Instant::now();
        let result = group.run(Channel::Data, operation, buffer.host_mut(), start + timeout);
        if let Err(error) = result {
            assert!(round >= 5, "too early: {error}");
            let Error::Deadline { peers, .. } = &error else { panic!("a lost peer: {error}") };
            // MPI's own all-gather does not say for whom it waits.
            let is_named = shares || operation == Operation::AllReduceSum;
            assert_eq!(*peers, if is_named { vec![1] } else { Vec::new() }, "{operation}");
            assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
            let at_risk = is_exposed || !shares;
            assert_eq!(mpi.memory_at_risk(), at_risk, "{operation}, shared memory: {shares}");
            break;
        }
    }
    finish(mpi, 1);
}

/// Line of `/proc/self/maps` for the memory that this process shares with its node.
fn shared_memory() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find(|line| line.contains("yardstick-shm")).unwrap_or_default().to_owned()
}

/// The end of a rank that failed: the drop does not hang, and the process ends by itself with the
/// exit code of a lost peer, once `ranks` of them have written what the test wants to read (an
/// mpirun ends all others as soon as one exits so).
fn finish(mpi: Mpi, ranks: usize) {
    let rank = mpi.rank();
    drop(mpi);
    write(rank, "ok");
    await_outcomes(0..ranks, |text| text == "ok");
    std::process::exit(5);
}

/// The same, once all ranks have got here.
fn finish_together(mpi: Mpi) {
    let world = mpi.world();
    write(mpi.rank(), "done");
    await_outcomes(0..world, |text| !text.is_empty());
    finish(mpi, world);
}

/// Waits until these ranks have written what they should.
fn await_outcomes(ranks: Range<usize>, is_so: fn(&str) -> bool) {
    let end = Instant::now() + TERMS.timeout;
    let is_missing =
        |rank| !std::fs::read_to_string(outcome_path(rank)).is_ok_and(|text| is_so(&text));
    while ranks.clone().any(is_missing) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn outcome_path(rank: usize) -> PathBuf {
    PathBuf::from(std::env::var("YARDSTICK_TEST_FOLDER").unwrap()).join(rank.to_string())
}

fn write(rank: usize, text: &str) {
    std::fs::write(outcome_path(rank), text).unwrap();
}

/// CPU time of this process, in ticks of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap(); // the name before may hold spaces
    let ticks = |index| fields.split_whitespace().nth(index).unwrap().parse::<u64>().unwrap();
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}
