//! Groups of ranks keep the contract of the world, several of them at the same time.

use std::time::{Duration, Instant};

use device::ViewMut;

use super::terms::{Terms, expect_ok, filled, incoming, value};
use crate::{
    Channel, Collective, Dimension, Dimensions, Error, GridPlan, GroupPlan, Operation, Timing,
};

/// Names of up to three dimensions, innermost first.
const DIMENSIONS: [&str; 3] = ["tensor", "shard", "data"];

/// The group of a rank in a world of two ranks per dimension: the ranks that differ from it only in
/// the dimensions that are bits of `number`.
fn plan(rank: usize, world: usize, number: usize) -> GroupPlan {
    let ranks = (0..world).filter(|other| (other ^ rank) & !number == 0).collect();
    let dimension = DIMENSIONS[number.trailing_zeros() as usize];
    GroupPlan { dimension, number: number as u8, ranks }
}

/// Creates the group of a plan.
fn create(collective: &dyn Collective, plan: &GroupPlan) -> Box<dyn Collective> {
    let group = expect_ok(collective, "subgroup", collective.subgroup(plan));
    assert_eq!(group.world(), plan.ranks.len(), "size of {plan}");
    assert_eq!(plan.ranks[group.rank()], collective.rank(), "rank in {plan}");
    group
}

/// Every group of every set of dimensions keeps the contract, in a world of 2, 4 or 8 ranks.
///
/// # Panics
/// Panics if a promise is broken.
pub fn every_group_keeps_the_contract(collective: &dyn Collective, terms: &Terms) {
    in_every_group(collective, terms, super::run_all);
}

/// Runs a check in every group of every set of dimensions, in a world of 2, 4 or 8 ranks.
///
/// # Panics
/// Panics if a group cannot be created, or the check does.
pub fn in_every_group(
    collective: &dyn Collective,
    terms: &Terms,
    check: impl Fn(&dyn Collective, &Terms),
) {
    let world = collective.world();
    for number in 1..world {
        let plan = plan(collective.rank(), world, number);
        let group = create(collective, &plan);
        assert_eq!(group.group().is_some(), plan.ranks.len() < world, "{plan}");
        // No group shares memory: the sums of its ranks have one order.
        check(&*group, &Terms { nodes: &[], ..*terms });
    }
}

/// Grids of all shapes keep the contract, in a world of 4 or 8 ranks, sum their inner lines first,
/// and time their stages.
///
/// # Panics
/// Panics if a promise is broken.
pub fn every_grid_keeps_the_contract(collective: &dyn Collective, terms: &Terms) {
    in_every_grid(collective, terms, |grid, terms| {
        super::run_all(grid, terms);
        stages_follow_each_other(grid, terms);
    });
}

/// Runs a check in grids of all shapes, in a world of 4 or 8 ranks.
///
/// # Panics
/// Panics if a grid cannot be created, or the check does.
pub fn in_every_grid(
    collective: &dyn Collective,
    terms: &Terms,
    check: impl Fn(&dyn Collective, &Terms),
) {
    // Ranks in other orders than the world's. A grid's ranks follow outer lines.
    const TWO_LINES: [usize; 8] = [0, 1, 0, 1, 0, 1, 0, 1];
    const FOUR_LINES: [usize; 8] = [0, 1, 2, 3, 0, 1, 2, 3];
    let world = collective.world();
    let shapes: [(usize, &'static [usize]); 2] = [(2, &TWO_LINES), (4, &FOUR_LINES)];
    for (number, (outer, lines_of_ranks)) in (11..).zip(shapes) {
        if outer >= world {
            continue;
        }
        let line = |line: usize| (0..world).rev().filter(|rank| rank % outer == line).collect();
        let plan = GridPlan {
            name: "shard x data",
            dimensions: ["shard", "data"],
            number,
            lines: (0..outer).map(line).collect(),
        };
        let grid = expect_ok(collective, "grid", collective.grid(&plan));
        assert_eq!(plan.group().ranks[grid.rank()], collective.rank(), "{plan:?}");
        let nodes = &lines_of_ranks[..world];
        check(&*grid, &Terms { nodes, sums_by_node: true, ..*terms });
        let dimensions = Dimensions {
            inner: Dimension { name: "shard", ranks: world / outer },
            outer: Some(Dimension { name: "data", ranks: outer }),
        };
        assert_eq!(grid.dimensions(), dimensions);
    }
}

/// The stage over the outer dimension begins or ends where the operation does, or lies inside.
fn stages_follow_each_other(grid: &dyn Collective, terms: &Terms) {
    use Operation::{AllGather, AllReduceSum, ReduceScatterSum};
    let run = |operation, buffer: &mut [f32]| {
        let result = grid.run(Channel::Data, operation, buffer, terms.deadline());
        expect_ok(grid, "operation", result)
    };
    let mut buffer = vec![1_f32; 8 * terms.message_elements_max];
    for operation in [AllReduceSum, ReduceScatterSum, AllGather] {
        let Timing { started, ended, outer, .. } = run(operation, &mut buffer);
        let Some(outer) = outer else { panic!("{operation} has no stage over the outer lines") };
        assert!(started <= outer.started && outer.started < outer.ended && outer.ended <= ended);
        assert!(operation != AllGather || outer.started < ended && outer.ended < ended);
        assert!(operation != ReduceScatterSum || started < outer.started);
    }
    assert_eq!(run(Operation::Barrier, &mut []).outer, None);
}

/// Operations of overlapping groups and of the world are in flight together, started and waited for
/// in an order of each rank's own, unless they have one order.
///
/// # Panics
/// Panics if one of them gives other values.
pub fn overlapping_groups_are_independent(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    let world = collective.world();
    let len = 3 * terms.message_elements_max + 5;
    let plans: Vec<GroupPlan> = (1..world).map(|number| plan(rank, world, number)).collect();
    let groups: Vec<_> = plans.iter().map(|plan| create(collective, plan)).collect();
    let numbers = || filled::<f32>(rank, len);
    for round in 0..3 {
        let buffer = |group| incoming::<f32>(group, &numbers());
        let mut buffers: Vec<_> = groups.iter().map(|group| buffer(&**group)).collect();
        let own_order = if terms.has_one_order { 0 } else { rank };
        let turn = (own_order + round) % buffers.len();
        buffers.rotate_left(turn);
        for buffer in &mut buffers {
            expect_ok(collective, "start", buffer.start(Operation::AllReduceSum, 0..len));
        }
        for buffer in buffers.iter_mut().rev() {
            let waited = buffer.wait(&(0..len), terms.deadline(), |_| ());
            expect_ok(collective, "wait", waited);
        }
        buffers.rotate_right(turn);
        for (plan, buffer) in plans.iter().zip(&buffers) {
            for (index, found) in buffer.get(0..len).host().iter().enumerate() {
                let addends = plan.ranks.iter().map(|&rank| f32::from(value(rank, index)));
                assert_eq!(*found, addends.sum::<f32>(), "{plan}, element {index}");
            }
        }
    }
}

/// Messages and sums of two groups of the same two ranks are not confused, although they have the
/// same tags and lengths, and each rank starts them in another order, unless they have one order.
/// In a world of two there is nothing to confuse: both are the world.
///
/// # Panics
/// Panics if they are confused.
pub fn one_pair_in_two_groups(collective: &dyn Collective, terms: &Terms) {
    let rank = collective.rank();
    if collective.world() == 2 {
        return;
    }
    let base = plan(rank, collective.world(), 1);
    let same = |number, dimension| GroupPlan { number, dimension, ..base.clone() };
    let groups = [same(8, "pipeline"), same(9, "context")].map(|plan| create(collective, &plan));
    let other = 1 - groups[0].rank();
    let messages =
        [Operation::Send { to: other, tag: 4 }, Operation::Receive { from: other, tag: 4 }];
    let started = |index: usize| {
        let group = &*groups[index];
        let number = 10 * (index as u8 + 1);
        let mut bytes = incoming(group, &[[number; 3], [0; 3]].concat());
        let mut sum = incoming(group, &[f32::from(number); 3]);
        let [send, receive] = messages;
        let exchange = bytes.start_group([(send, 0..3), (receive, 3..6)]);
        expect_ok(collective, "start", exchange);
        expect_ok(collective, "start", sum.start(Operation::AllReduceSum, 0..3));
        (bytes, sum)
    };
    let is_turned = other == 0 && !terms.has_one_order;
    let order = if is_turned { [1, 0] } else { [0, 1] };
    for (index, (mut bytes, mut sum)) in order.map(|index| (index, started(index))) {
        expect_ok(collective, "wait", bytes.wait(&(0..6), terms.deadline(), |_| ()));
        expect_ok(collective, "wait", sum.wait(&(0..3), terms.deadline(), |_| ()));
        let number = 10 * (index as u8 + 1);
        assert_eq!(bytes.get(0..6).host(), [number; 6], "messages of rank {rank}");
        assert_eq!(sum.get(0..3).host(), [2.0 * f32::from(number); 3], "sums of rank {rank}");
    }
}

/// In a world of four, `absent` does not enter a sum of `len` elements in its group of two: the
/// other rank of the group names it by its rank in the world, and finds the world dead. The ranks
/// of the other group complete theirs. The absent rank just returns, as in
/// [`an_absent_rank_is_a_deadline`](super::failures::an_absent_rank_is_a_deadline).
///
/// Kills the backend.
///
/// # Panics
/// Panics if a rank waits longer, or gets another result.
pub fn an_absent_member_is_named(
    collective: &dyn Collective,
    absent: usize,
    len: usize,
    timeout: Duration,
) {
    let operation = format!("all-reduce of {} bytes", 4 * len);
    lacks_a_member(collective, absent, timeout, &operation, |group, deadline| {
        let mut buffer = vec![1_f32; len];
        let result = group.run(Channel::Data, Operation::AllReduceSum, &mut buffer, deadline);
        result.inspect(|_| assert_eq!(buffer, vec![2.0; len]))
    });
}

/// The same for grouped messages of `len` elements to and from the other rank of the group.
///
/// Kills the backend.
///
/// # Panics
/// Panics if a rank waits longer, or gets another result.
pub fn an_absent_peer_of_grouped_messages_is_named(
    collective: &dyn Collective,
    absent: usize,
    len: usize,
    timeout: Duration,
) {
    let operation = format!("grouped messages of {} bytes", 8 * len);
    lacks_a_member(collective, absent, timeout, &operation, |group, deadline| {
        let other = 1 - group.rank();
        let mut buffer = [vec![1_f32; len], vec![0.0; len]].concat();
        let (sent, received) = ViewMut::from(&mut buffer).split_at(len);
        let send = Operation::Send { to: other, tag: 0 };
        let receive = Operation::Receive { from: other, tag: 0 };
        let messages = [(send, sent), (receive, received)];
        let result = group.run_group(Channel::Data, messages, deadline);
        result.inspect(|_| assert_eq!(buffer, vec![1.0; 2 * len]))
    });
}

fn lacks_a_member(
    collective: &dyn Collective,
    absent: usize,
    timeout: Duration,
    operation: &str,
    run: impl FnOnce(&dyn Collective, Instant) -> Result<Timing, Error>,
) {
    let rank = collective.rank();
    let group = create(collective, &plan(rank, collective.world(), 2));
    if rank == absent {
        return;
    }
    let start = Instant::now();
    let result = run(&*group, start + timeout);
    let other = absent ^ 2;
    if rank != other {
        expect_ok(collective, "the other group", result);
        return;
    }
    let error = result.err().unwrap_or_else(|| panic!("{operation} without one rank"));
    assert!(start.elapsed() >= timeout, "the deadline came early: {error}");
    let text = error.to_string();
    let ranks = [absent.min(other), absent.max(other)];
    let named = format!("{operation} in the shard group of ranks {ranks:?}");
    assert!(text.contains(&named), "{text}");
    assert_eq!(error.missing_ranks(), [absent], "{text}");
    for dead in [collective, &*group] {
        let result = dead.barrier(Instant::now() + timeout);
        let Err(Error::Dead { rank: dead, reason, .. }) = &result else { panic!("{result:?}") };
        assert_eq!((*dead, &**reason), (rank, &*text), "others learn the same");
    }
}
