//! Ranks of a node as threads of this process, each with mappings of its own.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::counters::Sequence;
use super::node::Node;
use super::share::{all_gather_over, share};
use super::shared_buffer::SharedBuffer;
use super::stage_runner::{LocationMismatch, StageRunner, Step};
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::{Channel, Collective, RawBuffer, Threads};

const KINDS: [StageKind; 3] =
    [StageKind::ReduceScatter, StageKind::AllGather, StageKind::AllReduce];

/// One rank of a node, and its buffer that all ranks of the node map.
struct Rank {
    local: usize,
    node: Arc<Node>,
    shared: Arc<SharedBuffer>,
}

impl Rank {
    /// The rank's buffer, which no stage may be running on.
    fn buffer(&mut self) -> &mut [f64] {
        let start = self.shared.start(self.local).cast();
        // SAFETY: this rank's own mapping. Others write to it only while a stage runs.
        unsafe { std::slice::from_raw_parts_mut(start, self.shared.bytes() / 8) }
    }

    fn runner(&self, sequence: Sequence) -> StageRunner {
        StageRunner::new(self.node.clone(), sequence)
    }

    fn rounds(&self) -> u64 {
        let counters = self.node.sequence_counters(self.local, Sequence::BeforeExchange);
        counters.rounds.0.load(Ordering::Relaxed)
    }

    /// Begins a stage on some elements of its buffer.
    fn begin(
        &mut self,
        runner: &mut StageRunner,
        elements: std::ops::Range<usize>,
        kind: StageKind,
        partition: Partition,
    ) {
        let buffer = RawBuffer::of(&mut self.buffer()[elements]);
        let location = self.node.locate(buffer).expect("a range of the shared buffer");
        runner.begin(Stage { kind, buffer, partition }, location);
    }
}

/// The ranks of a node, which have odd numbers in the world, with a buffer of `len` elements each.
fn node(ranks: usize, len: usize) -> Vec<Rank> {
    let join = |rank: Threads| {
        let number = rank.rank();
        let is_here = |other: &usize| other % 2 == number % 2;
        let of_node: Vec<usize> = (0..rank.world()).filter(is_here).collect();
        let mut all_gather = all_gather_over(&rank, Instant::now() + Duration::from_secs(20));
        let node = Node::join(number, &of_node, &mut all_gather).unwrap().unwrap();
        let mut add = |bytes| {
            let shared = share(bytes, number, &of_node, &mut all_gather).unwrap().unwrap();
            let shared = Arc::new(shared);
            node.add(shared.clone());
            shared
        };
        add(8); // so that the one that counts is not the first
        let shared = add(8 * len);
        Rank { local: number / 2, node: Arc::new(node), shared }
    };
    std::thread::scope(|scope| {
        let join = &join;
        let group = Threads::group(2 * ranks).into_iter();
        let threads: Vec<_> = group.map(|rank| scope.spawn(move || join(rank))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.skip(1).step_by(2).collect()
    })
}

/// Runs the same on every rank of a node.
fn on_node(ranks: usize, len: usize, body: impl Fn(&mut Rank) + Sync) {
    std::thread::scope(|scope| {
        for mut rank in node(ranks, len) {
            let body = &body;
            scope.spawn(move || body(&mut rank));
        }
    });
}

/// Steps a stage that was begun until it is complete.
fn complete(rank: &Rank, runner: &mut StageRunner, mut before_step: impl FnMut()) {
    let start = Instant::now();
    // SAFETY: the mapping lives as long as the rank.
    while unsafe { runner.step() }.unwrap() != Step::Complete {
        before_step();
        if !runner.can_progress() {
            let timeout = Some(Duration::from_secs(1));
            rank.node.wakeup().wait_unless(timeout, || runner.can_progress());
        }
        assert!(start.elapsed() < Duration::from_secs(120), "a stage does not end");
    }
}

/// Fractions, so that the bits of sums depend on the order.
fn value(rank: usize, index: usize) -> f64 {
    ((index * 7 + rank * 3) % 31) as f64 / (3.0 + rank as f64)
}

fn fill(buffer: &mut [f64], rank: usize) {
    buffer.iter_mut().enumerate().for_each(|(index, element)| *element = value(rank, index));
}

fn sum(ranks: usize, index: usize) -> f64 {
    (1..ranks).fold(value(0, index), |sum, rank| sum + value(rank, index))
}

/// Expected value in a rank's buffer after a stage.
fn expected(
    kind: StageKind,
    partition: &Partition,
    rank: usize,
    ranks: usize,
    index: usize,
) -> f64 {
    let owner = (0..ranks).find(|&owner| partition.part(owner, ranks).contains(&index));
    match (kind, owner) {
        (StageKind::AllReduce, Some(_)) => sum(ranks, index),
        (StageKind::ReduceScatter, Some(owner)) if owner == rank => sum(ranks, index),
        (StageKind::AllGather, Some(owner)) => value(owner, index),
        _ => value(rank, index),
    }
}

/// Stages of all kinds and of many lengths, one after another, in both sequences.
#[test]
fn stages_leave_the_right_bits() {
    const LEN: usize = 210_000; // several chunks
    for ranks in 1..=4 {
        on_node(ranks, LEN + 7, |rank| {
            for sequence in [Sequence::BeforeExchange, Sequence::AfterExchange] {
                let mut runner = rank.runner(sequence);
                for len in [1, 33, 1234, LEN] {
                    let positions = (0..ranks).rev().collect();
                    let placed = Partition::Placed { positions, len: len / ranks };
                    let whole = Partition::Whole { owner: ranks - 1, len };
                    for partition in [Partition::Even { len }, placed, whole] {
                        for kind in KINDS {
                            check_stage(rank, &mut runner, len, kind, &partition);
                        }
                    }
                }
            }
        });
    }
}

fn check_stage(
    rank: &mut Rank,
    runner: &mut StageRunner,
    len: usize,
    kind: StageKind,
    partition: &Partition,
) {
    let local = rank.local;
    let ranks = rank.node.ranks().len();
    let elements = 7..7 + len;
    fill(&mut rank.buffer()[elements.clone()], local);
    rank.begin(runner, elements.clone(), kind, partition.clone());
    complete(rank, runner, || ());
    for (index, found) in rank.buffer()[elements].iter().enumerate() {
        let expected = expected(kind, partition, local, ranks, index);
        assert_eq!(found.to_bits(), expected.to_bits(), "{kind:?} {partition:?}, {index}");
    }
}

#[test]
fn bytes_are_gathered_from_one_owner() {
    on_node(3, 70, |rank| {
        let buffer = rank.buffer();
        let start = buffer.as_mut_ptr().cast::<u8>();
        // SAFETY: the same memory as bytes, used by nothing else here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, 501) };
        bytes.fill(rank.local as u8 + 1);
        let buffer = RawBuffer::of(&mut *bytes);
        let partition = Partition::Whole { owner: 1, len: 501 };
        let mut runner = rank.runner(Sequence::AfterExchange);
        let stage = Stage { kind: StageKind::AllGather, buffer, partition };
        runner.begin(stage, rank.node.locate(buffer).unwrap());
        complete(rank, &mut runner, || ());
        assert_eq!(bytes, [2; 501], "rank {}", rank.local);
    });
}

/// Every rank may be the slowest at any time.
#[test]
fn delays_do_no_harm() {
    const LEN: usize = 100_000;
    on_node(3, LEN, |rank| {
        let local = rank.local;
        let mut runner = rank.runner(Sequence::BeforeExchange);
        for round in 0..20 {
            fill(rank.buffer(), local);
            rank.begin(&mut runner, 0..LEN, StageKind::AllReduce, Partition::Even { len: LEN });
            let mut step = 0;
            complete(rank, &mut runner, || {
                if (step * 5 + round) % 7 == local {
                    std::thread::sleep(Duration::from_micros(300));
                }
                step += 1;
            });
            let buffer = rank.buffer();
            assert!((0..LEN).all(|index| buffer[index] == sum(3, index)), "round {round}");
        }
    });
}

#[test]
fn missing_ranks_are_known() {
    const LEN: usize = 1000;
    let data = Channel::Data;
    let mut ranks = node(3, LEN);
    let nodes: Vec<_> = ranks.iter().map(|rank| rank.node.clone()).collect();
    nodes[0].record_start(data);
    assert_eq!(nodes[0].missing(data, 1), [3, 5], "they have not started it");
    nodes[1].record_start(data);
    assert_eq!(nodes[0].missing(data, 1), [5]);
    assert_eq!(nodes[0].missing(Channel::Control, 0), [0; 0], "nobody is behind");
    nodes[2].record_start(data);
    assert_eq!(nodes[0].missing(data, 1), [0; 0]);

    let partition = Partition::Even { len: LEN };
    let mut after = ranks[0].runner(Sequence::AfterExchange);
    ranks[0].begin(&mut after, 0..LEN, StageKind::AllGather, partition.clone());
    // SAFETY: the mapping lives until the end of this test.
    assert_eq!(unsafe { after.step() }, Ok(Step::Progressed));
    assert_eq!(nodes[0].missing(data, 1), [0; 0], "they may wait for another node");

    // Rank 5 stops in the middle: the others finish one round more than it did, and no more.
    let runner = |rank: &Rank| rank.runner(Sequence::BeforeExchange);
    let mut runners: Vec<StageRunner> = ranks.iter().map(runner).collect();
    for (rank, runner) in ranks.iter_mut().zip(&mut runners) {
        rank.begin(runner, 0..LEN, StageKind::AllReduce, partition.clone());
    }
    for turn in 0..20 {
        for (local, runner) in runners.iter_mut().enumerate() {
            if local < 2 || turn < 2 {
                // SAFETY: as above.
                unsafe { runner.step() }.unwrap();
            }
        }
    }
    assert_eq!([0, 1, 2].map(|local| ranks[local].rounds()), [2, 2, 1]);
    assert_eq!(nodes[0].missing(data, 1), [5]);
    assert_eq!(nodes[1].missing(data, 1), [5]);
    assert_eq!(nodes[2].missing(data, 1), [0; 0], "it knows of nobody to wait for");
}

/// Others write to a buffer only between its publication and the end of an all-reduce.
#[test]
fn a_buffer_is_exposed_while_others_may_write_to_it() {
    let mut ranks = node(2, 100);
    let mut runners = [0, 1].map(|local: usize| ranks[local].runner(Sequence::BeforeExchange));
    for (kind, is_exposed) in [(StageKind::AllGather, false), (StageKind::AllReduce, true)] {
        for (rank, runner) in ranks.iter_mut().zip(&mut runners) {
            rank.begin(runner, 0..100, kind, Partition::Even { len: 100 });
            assert!(!runner.is_exposed(), "no other rank knows of it");
        }
        // SAFETY: the mapping lives until the end of this test.
        unsafe { runners[0].step() }.unwrap();
        assert_eq!(runners[0].is_exposed(), is_exposed, "{kind:?}");
        for _ in 0..10 {
            for runner in &mut runners {
                // SAFETY: as above.
                unsafe { runner.step() }.unwrap();
            }
        }
        assert!(runners.iter().all(|runner| runner.is_idle() && !runner.is_exposed()), "{kind:?}");
    }
}

#[test]
fn only_memory_inside_of_a_shared_buffer_has_a_location() {
    let mut ranks = node(1, 100);
    let node = ranks[0].node.clone();
    let locate = |buffer: &mut [f64]| node.locate(RawBuffer::of(buffer));
    let inside = locate(&mut ranks[0].buffer()[60..]).unwrap();
    assert_eq!(inside.offset, 480);
    assert!(locate(&mut ranks[0].buffer()[60..60]).is_none(), "no elements");
    assert!(locate(&mut [0.0; 3]).is_none(), "other memory");
}

#[test]
fn another_range_on_one_rank_is_an_error() {
    let mut ranks = node(2, 100);
    let mut runners = [0, 1].map(|local: usize| ranks[local].runner(Sequence::BeforeExchange));
    for (local, runner) in runners.iter_mut().enumerate() {
        let partition = Partition::Even { len: 50 };
        ranks[local].begin(runner, local..local + 50, StageKind::AllReduce, partition);
        // SAFETY: the mapping lives until the end of this test.
        assert_eq!(unsafe { runner.step() }, Ok(Step::Progressed));
    }
    // SAFETY: as above.
    let outcome = unsafe { runners[0].step() };
    assert_eq!(outcome, Err(LocationMismatch { rank: 3 }));
}
