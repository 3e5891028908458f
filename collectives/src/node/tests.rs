//! Ranks of a node as threads of this process, each with a mapping of its own.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Kind, Lane, Node, Offer, Parts, Region, Step, Task};
use crate::{Channel, Element, Memory};

fn nodes(ranks: usize) -> Vec<Arc<Node>> {
    let world: Vec<usize> = (0..ranks).map(|local| 10 + local).collect();
    let (first, _file, address) = Node::create(&world).unwrap();
    let join = |local| Node::join(address, local, &world).unwrap();
    std::iter::once(first).chain((1..ranks).map(join)).map(Arc::new).collect()
}

/// Runs the same on every rank.
fn on_node(ranks: usize, body: impl Fn(&Arc<Node>) + Sync) {
    std::thread::scope(|scope| {
        for node in nodes(ranks) {
            let body = &body;
            scope.spawn(move || body(&node));
        }
    });
}

fn run<E: Element>(lane: &mut Lane, node: &Node, buffer: &mut [E], parts: Parts, kind: Kind) {
    let start = Instant::now();
    lane.begin(Task { memory: Memory::of(buffer), parts, kind });
    // SAFETY: the buffer is borrowed until the task is finished.
    while unsafe { lane.step() } != Step::Finished || !lane.is_idle() {
        if !lane.can_go_on() {
            node.bell().sleep_unless(Some(Duration::from_secs(1)), || lane.can_go_on());
        }
        assert!(start.elapsed() < Duration::from_secs(30), "a lane is stuck");
    }
}

fn value(rank: usize, index: usize) -> f64 {
    ((index * 7 + rank * 3) % 31) as f64
}

fn filled(rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|index| value(rank, index)).collect()
}

fn total(ranks: usize, index: usize) -> f64 {
    (0..ranks).map(|rank| value(rank, index)).sum()
}

/// Tasks of many lengths one after another, so that slots are used again in every phase.
#[test]
fn tasks_of_all_kinds_follow_each_other() {
    for ranks in 1..=4 {
        for piece_elements_max in [100, usize::MAX] {
            on_node(ranks, |node| {
                let me = node.local;
                let mut lane = Lane::for_all(node.clone(), piece_elements_max);
                let lens = [0, 1, 33, 100, 1234, 70_001];
                for len in lens.into_iter().cycle().take(30) {
                    let mut buffer = filled(me, len);
                    let parts = Parts::Even { len };
                    run(&mut lane, node, &mut buffer, parts.clone(), Kind::ReduceAndGather);
                    let sums = |index| total(ranks, index);
                    assert!((0..len).all(|index| buffer[index] == sums(index)), "sums of {len}");

                    let mut buffer = filled(me, len);
                    run(&mut lane, node, &mut buffer, parts.clone(), Kind::Reduce);
                    let own = parts.of(me, ranks);
                    assert!(own.clone().all(|index| buffer[index] == sums(index)), "{own:?}");
                    let others = (0..len).filter(|index| !own.contains(index));
                    assert!(others.into_iter().all(|index| buffer[index] == value(me, index)));

                    let mut buffer = filled(me, len);
                    run(&mut lane, node, &mut buffer, parts.clone(), Kind::Gather);
                    for owner in 0..ranks {
                        let mut part = parts.of(owner, ranks);
                        assert!(part.all(|index| buffer[index] == value(owner, index)));
                    }
                }
            });
        }
    }
}

#[test]
fn parts_may_be_placed_anywhere_or_be_one_ranks() {
    on_node(3, |node| {
        let me = node.local;
        let mut lanes = [Lane::for_all(node.clone(), 50), Lane::for_gathers(node.clone(), 50)];
        for lane in &mut lanes {
            let places: Arc<[usize]> = [4, 0, 2].into();
            let mut buffer = filled(me, 5 * 333);
            let parts = Parts::Placed { places: places.clone(), len: 333 };
            run(lane, node, &mut buffer, parts, Kind::Gather);
            for (index, found) in buffer.iter().enumerate() {
                let owner = places.iter().position(|&place| place == index / 333).unwrap_or(me);
                assert_eq!(*found, value(owner, index), "element {index}");
            }
            let mut bytes = [me as u8 + 1; 501];
            run(lane, node, &mut bytes, Parts::Whole { owner: 1, len: 501 }, Kind::Gather);
            assert_eq!(bytes, [2; 501], "rank {me}");
        }
        let mut buffer = filled(me, 777);
        let parts = Parts::Whole { owner: 2, len: 777 };
        run(&mut lanes[0], node, &mut buffer, parts, Kind::Reduce);
        let of = |index| if me == 2 { total(3, index) } else { value(me, index) };
        assert!((0..777).all(|index| buffer[index] == of(index)), "rank {me}");
    });
}

/// Every rank may be the slowest at any time.
#[test]
fn pauses_do_no_harm() {
    on_node(3, |node| {
        let mut lane = Lane::for_all(node.clone(), 64);
        let start = Instant::now();
        for round in 0..20 {
            let len = 64 * 3 * 8;
            let mut buffer = filled(node.local, len);
            let parts = Parts::Even { len };
            let memory = Memory::of(&mut buffer);
            lane.begin(Task { memory, parts, kind: Kind::ReduceAndGather });
            let mut step = 0;
            loop {
                if (step * 5 + round) % 7 == node.local {
                    std::thread::sleep(Duration::from_micros(300));
                }
                // SAFETY: the buffer lives until the task is finished.
                match unsafe { lane.step() } {
                    Step::Blocked => {
                        let at_most = Some(Duration::from_secs(1));
                        node.bell().sleep_unless(at_most, || lane.can_go_on());
                        assert!(start.elapsed() < Duration::from_secs(30), "a lane is stuck");
                    }
                    Step::Moved => step += 1,
                    Step::Finished => break,
                }
            }
            assert!((0..len).all(|index| buffer[index] == total(3, index)), "round {round}");
        }
    });
}

#[test]
fn who_is_missing_is_known() {
    let nodes = nodes(3);
    let data = Channel::Data;
    nodes[0].come(data);
    assert_eq!(nodes[0].missing(data, 1), [11, 12], "they did not come");
    nodes[1].come(data);
    assert_eq!(nodes[0].missing(data, 1), [12]);
    assert_eq!(nodes[0].missing(Channel::Control, 0), [], "nobody is behind");
    nodes[2].come(data);
    assert_eq!(nodes[0].missing(data, 1), []);
    let (mut down, mut bytes) = (Lane::for_gathers(nodes[0].clone(), 10), [0u8; 30]);
    let parts = Parts::Even { len: bytes.len() };
    down.begin(Task { memory: Memory::of(&mut bytes), parts, kind: Kind::Gather });
    // SAFETY: the buffer lives until the end of this test.
    assert_eq!(unsafe { down.step() }, Step::Moved);
    assert_eq!(nodes[0].missing(data, 1), [], "they may wait for another node");
    // Rank 2 stops in the middle: the others go one round further than it did, and no more.
    let mut buffers = [(); 3].map(|()| vec![1f32; 1000]);
    let mut lanes: Vec<Lane> = nodes.iter().map(|node| Lane::for_all(node.clone(), 10)).collect();
    for (lane, buffer) in lanes.iter_mut().zip(&mut buffers) {
        let parts = Parts::Even { len: buffer.len() };
        lane.begin(Task { memory: Memory::of(buffer), parts, kind: Kind::ReduceAndGather });
    }
    for turn in 0..20 {
        for (rank, lane) in lanes.iter_mut().enumerate() {
            if rank < 2 || turn < 5 {
                // SAFETY: the buffers live until the end of this test.
                unsafe { lane.step() };
            }
        }
    }
    assert_eq!(nodes[0].missing(data, 1), [12]);
    assert_eq!(nodes[1].missing(data, 1), [12]);
    assert_eq!(nodes[2].missing(data, 1), [], "it knows of nobody to wait for");
}

/// A buffer of `len` elements for every rank, all of them reached by all.
fn share(nodes: &[Arc<Node>], len: usize) -> Vec<Arc<Region>> {
    let offers: Vec<Offer> = nodes.iter().map(|_| Offer::new(len * 8).unwrap()).collect();
    let addresses: Vec<_> = offers.iter().map(|offer| offer.address).collect();
    let mapped: Vec<_> = offers
        .into_iter()
        .enumerate()
        .map(|(local, offer)| offer.map(local, &addresses).unwrap()) // with the files
        .collect();
    let regions: Vec<_> = mapped.into_iter().map(|(region, _)| Arc::new(region)).collect();
    nodes.iter().zip(&regions).for_each(|(node, region)| node.add(region.clone()));
    regions
}

/// Buffers in regions give the same bits as buffers anywhere, also where one rank has another
/// place for its buffer than the others, and slots have to do.
#[test]
fn buffers_that_all_reach_give_the_same() {
    const LEN: usize = 5000;
    for ranks in 1..=4 {
        let nodes = nodes(ranks);
        share(&nodes, 8); // so that the one that counts is not the first
        let regions = share(&nodes, 3 * LEN);
        std::thread::scope(|scope| {
            for (node, region) in nodes.iter().zip(&regions) {
                scope.spawn(move || {
                    let start = region.own().cast::<f64>();
                    // SAFETY: this rank's buffer, which its lane alone is lent.
                    let buffer = unsafe { std::slice::from_raw_parts_mut(start, 3 * LEN) };
                    let lane = &mut Lane::for_all(node.clone(), 300);
                    all_kinds(lane, node, &mut buffer[LEN..2 * LEN], true);
                    let other = if node.local == 1 { 0 } else { LEN };
                    all_kinds(lane, node, &mut buffer[other..other + LEN], ranks == 1);
                    let mut own = vec![0.0; LEN];
                    let is_own = node.local == 0;
                    let mixed = if is_own { &mut own[..] } else { &mut buffer[..LEN] };
                    all_kinds(lane, node, mixed, false);
                });
            }
        });
    }
}

/// `direct` is how the tasks are to be done.
fn all_kinds(lane: &mut Lane, node: &Arc<Node>, buffer: &mut [f64], direct: bool) {
    let (me, ranks, len) = (node.local, node.ranks.len(), buffer.len());
    let fractions = |rank: usize, index: usize| value(rank, index) / (3.0 + rank as f64);
    let fill = |buffer: &mut [f64]| {
        buffer.iter_mut().enumerate().for_each(|(index, value)| *value = fractions(me, index));
    };
    let sum = |index: usize| {
        (1..ranks).fold(fractions(0, index), |sum, rank| sum + fractions(rank, index))
    };
    let finished = |lane: &Lane| lane.own_words().finished[0].0.load(Ordering::Relaxed);
    let places: Arc<[usize]> = (0..ranks).rev().collect();
    let placed = Parts::Placed { places, len: len / ranks };
    for parts in [Parts::Even { len }, placed, Parts::Whole { owner: ranks - 1, len }] {
        let owner_of = |index| (0..ranks).find(|&rank| parts.of(rank, ranks).contains(&index));
        for kind in [Kind::Reduce, Kind::Gather, Kind::ReduceAndGather] {
            fill(buffer);
            let before = finished(lane);
            run(lane, node, buffer, parts.clone(), kind);
            assert_eq!(finished(lane) - before == 2, direct, "{kind:?}: two rounds if direct");
            for (index, found) in buffer.iter().enumerate() {
                let expected = match (kind, owner_of(index)) {
                    (Kind::ReduceAndGather, Some(_)) => sum(index),
                    (Kind::Reduce, Some(owner)) if owner == me => sum(index),
                    (Kind::Gather, Some(owner)) => fractions(owner, index),
                    _ => fractions(me, index),
                };
                assert_eq!(found.to_bits(), expected.to_bits(), "{kind:?} {parts:?}, {index}");
            }
        }
    }
}

/// Others write to a buffer only between the meeting and the end of a sum for all.
#[test]
fn a_buffer_is_exposed_while_others_may_write_to_it() {
    let nodes = nodes(2);
    let regions = share(&nodes, 100);
    let mut lanes = [0, 1].map(|rank: usize| Lane::for_all(nodes[rank].clone(), 100));
    for (kind, exposed) in [(Kind::Gather, false), (Kind::ReduceAndGather, true)] {
        for (lane, region) in lanes.iter_mut().zip(&regions) {
            let start = region.own().cast::<f64>();
            // SAFETY: this rank's buffer, which its lane alone is lent.
            let memory = Memory::of(unsafe { std::slice::from_raw_parts_mut(start, 100) });
            lane.begin(Task { memory, parts: Parts::Even { len: 100 }, kind });
            assert!(!lane.is_exposed(), "nobody knows of it");
        }
        // SAFETY: the buffers live until the end of this test.
        unsafe { lanes[0].step() };
        assert_eq!(lanes[0].is_exposed(), exposed, "{kind:?}");
        for _ in 0..10 {
            for lane in &mut lanes {
                // SAFETY: as above.
                unsafe { lane.step() };
            }
        }
        assert!(lanes.iter().all(|lane| lane.is_idle() && !lane.is_exposed()), "{kind:?}");
    }
}
