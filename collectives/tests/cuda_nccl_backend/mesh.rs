//! Groups and grids of ranks, each with communicators of its own, open at the same time on every
//! device.

use std::sync::Arc;
use std::time::Duration;

use device::cuda::{self, Cuda};
use device::{Allocator, DeviceBuffer, ViewMut};
use yardstick_collectives::contract::groups;
use yardstick_collectives::{
    Channel, Collective, Error, GridPlan, GroupPlan, Incoming, Message, Nccl, Operation, Position,
    RawBuffer, Threads,
};

use crate::device_copy::{Channels, OnDevice};
use crate::{Rank, TERMS, close, has_the_right_values, in_own_process, own_process, soon};

/// Ranks of three dimensions.
pub(crate) const RANKS_MAX: usize = 8;
/// Ranks of two dimensions.
const RANKS: usize = 4;
/// Elements of a buffer.
const LEN: usize = 600;

/// Runs the same on every rank of a mesh, whose devices communicate in groups only; does nothing
/// where there are fewer devices.
fn on_mesh(ranks: usize, body: impl Fn(Rank) + Sync) {
    if cuda::devices().unwrap().len() < ranks {
        return eprintln!("not shown: there are fewer than {ranks} devices");
    }
    std::thread::scope(|threads| {
        for (rank, control) in Threads::group(ranks).into_iter().enumerate() {
            let body = &body;
            threads.spawn(move || {
                let device = Cuda::open(rank).unwrap();
                let nccl = Nccl::open_for_groups(&control, &device, TERMS.timeout).unwrap();
                body(Rank { nccl, device });
            });
        }
    });
}

#[test]
fn groups_keep_the_contract() {
    in_own_process("mesh::groups_keep_the_contract", 0, || {
        on_mesh(RANKS_MAX, |Rank { nccl, device }| {
            let nccl = Arc::new(nccl);
            let world = OnDevice::new(nccl.clone(), &device, Channels::Data);
            groups::every_group_keeps_the_contract(&world, &TERMS);
            groups::overlapping_groups_are_independent(&world, &TERMS);
            groups::one_pair_in_two_groups(&world, &TERMS);
            assert!(world.used_device(), "operations went to NCCL");
            close(world, nccl);
        });
    });
}

#[test]
fn grids_keep_the_contract() {
    in_own_process("mesh::grids_keep_the_contract", 100, || {
        on_mesh(RANKS, |Rank { nccl, device }| {
            let nccl = Arc::new(nccl);
            let world = OnDevice::new(nccl.clone(), &device, Channels::Data);
            groups::every_grid_keeps_the_contract(&world, &TERMS);
            assert!(world.used_device(), "operations went to NCCL");
            close(world, nccl);
        });
    });
}

/// A grid sums its inner lines first, and the emulated NCCL in the order of a line's ranks.
#[test]
fn operations_of_groups_and_grids_have_the_right_values() {
    in_own_process("mesh::operations_of_groups_and_grids_have_the_right_values", 0, || {
        on_mesh(RANKS_MAX, |Rank { nccl, device }| {
            let nccl = Arc::new(nccl);
            let world = OnDevice::new(nccl.clone(), &device, Channels::Both);
            groups::in_every_group(&world, &TERMS, has_the_right_values);
            groups::in_every_grid(&world, &TERMS, has_the_right_values);
            close(world, nccl);
        });
    });
}

/// The dimensions of four ranks.
fn dimensions(rank: usize) -> [GroupPlan; 2] {
    [
        GroupPlan { dimension: "shard", number: 1, ranks: vec![rank & 2, rank | 1] },
        GroupPlan { dimension: "data", number: 2, ranks: vec![rank & 1, rank | 2] },
    ]
}

/// The grid of these dimensions.
fn plan() -> GridPlan {
    GridPlan {
        name: "shard x data",
        dimensions: ["shard", "data"],
        number: 3,
        lines: vec![vec![0, 1], vec![2, 3]],
    }
}

fn ones(device: &Cuda, len: usize) -> DeviceBuffer<f32> {
    let mut buffer = Allocator::cuda(device).zeros(len);
    device.write(buffer.view_mut(), &vec![1.0; len]).unwrap();
    buffer
}

/// Operations of two groups and of their grid follow each other, and the compute stream waits for
/// each, without the host.
#[test]
fn operations_of_groups_are_in_the_order_of_their_submission() {
    let test = "mesh::operations_of_groups_are_in_the_order_of_their_submission";
    in_own_process(test, 2000, || on_mesh(RANKS, follow_each_other));
}

/// Sums in a group, for which the compute stream waits and the host does not.
fn join_sum(group: &dyn Collective, buffer: ViewMut<'_, f32>) {
    let buffer = RawBuffer::of(buffer);
    // SAFETY: what the device is given from here on waits for the sum, and all tests settle.
    let sum = unsafe { group.submit(Channel::Data, Operation::AllReduceSum, buffer) }.unwrap();
    assert_eq!(group.join(sum, soon()).unwrap(), None, "the host does not wait");
}

fn follow_each_other(Rank { nccl, device }: Rank) {
    let [shard, data] = dimensions(nccl.rank()).each_ref().map(|plan| nccl.subgroup(plan).unwrap());
    let grid = nccl.grid(&plan()).unwrap();
    for group in [&shard, &data, &grid] {
        group.connect(&[Operation::AllReduceSum, Operation::AllGather], 4 * LEN).unwrap();
    }
    for _ in 0..5 {
        let mut buffer = ones(&device, LEN);
        for group in [&shard, &data, &grid, &shard] {
            join_sum(&**group, buffer.view_mut());
        }
        let mut settled = 0;
        nccl.settle(TERMS.timeout, &mut |_| settled += 1).unwrap();
        assert_eq!(settled, 4, "any end settles the operations of all");
        let mut sums = vec![0.0; LEN];
        device.read(buffer.view(), &mut sums).unwrap();
        assert_eq!(sums, [2.0 * 2.0 * 4.0 * 2.0; LEN]);
    }
    let mut buffer = ones(&device, LEN);
    let world: &dyn Collective = &nccl;
    let sum = Operation::AllReduceSum;
    let error = world.run(Channel::Data, sum, buffer.view_mut(), soon());
    assert!(matches!(error, Err(Error::Unsupported { .. })), "nothing connects all: {error:?}");
    nccl.close(soon()).unwrap();
    let closed = shard.barrier(soon());
    assert!(matches!(closed, Err(Error::Dead { .. })), "groups end with the world: {closed:?}");
}

/// Two ranks open their group first: the grid of all, opened by all, connects only what is new.
#[test]
fn a_line_that_its_ranks_have_connected_is_used_again() {
    let test = "mesh::a_line_that_its_ranks_have_connected_is_used_again";
    in_own_process(test, 0, || {
        on_mesh(RANKS, |Rank { nccl, device }| {
            let is_first = nccl.rank() < 2;
            let _pair = is_first.then(|| nccl.subgroup(&dimensions(nccl.rank())[0]).unwrap());
            let grid = nccl.grid(&plan()).unwrap();
            let mut buffer = ones(&device, LEN);
            join_sum(&*grid, buffer.view_mut());
            nccl.settle(TERMS.timeout, &mut |_| ()).unwrap();
            let mut sums = vec![0.0; LEN];
            device.read(buffer.view(), &mut sums).unwrap();
            assert_eq!(sums, [4.0; LEN]);
            nccl.close(soon()).unwrap();
        });
    });
}

/// Rank 3 does not take part in a reduction of a grid: every other rank names it, and the line in
/// which it waits itself.
#[test]
fn an_absent_rank_of_a_grid_is_named_with_the_line_that_waits() {
    let test = "mesh::an_absent_rank_of_a_grid_is_named_with_the_line_that_waits";
    in_own_process(test, 0, || on_mesh(RANKS, lacks_rank_3));
}

fn lacks_rank_3(Rank { nccl, device }: Rank) {
    let rank = nccl.rank();
    let timeout = Duration::from_secs(2);
    let grid = nccl.grid(&plan()).unwrap();
    if rank == 3 {
        return std::thread::sleep(timeout + Duration::from_secs(5));
    }
    let mut buffer = Incoming::new(&*grid, ones(&device, LEN));
    buffer.start(Operation::ReduceScatterSum, 0..LEN).unwrap();
    buffer.wait(&(0..LEN), soon(), |_| ()).unwrap();
    let error = nccl.settle(timeout, &mut |_| ()).unwrap_err();
    let Error::Deadline { position, peers, bytes, .. } = &error else { panic!("{error}") };
    assert_eq!(*position, Some(Position { number: 1, of: 1 }));
    assert_eq!((&peers[..], *bytes), (&[3][..], 4 * LEN));
    let line = ["data group of ranks [0, 2]", "data group of ranks [1, 3]"].get(rank);
    let line = line.unwrap_or(&"shard group of ranks [2, 3]");
    let expected = format!("reduce-scatter of {bytes} bytes in the {line} (number 1 of 1)");
    assert!(error.to_string().starts_with(&expected), "{error}");
    let dead = nccl.subgroup(&dimensions(rank)[0]).err();
    assert!(matches!(dead, Some(Error::Dead { .. })), "everything is dead: {dead:?}");
}

/// Rank 3 does not take part in grouped messages, for which all others wait, one of them through
/// another: each names it by its rank in the world, and the group in which it waits itself.
#[test]
fn an_absent_peer_of_grouped_messages_is_named() {
    let test = "mesh::an_absent_peer_of_grouped_messages_is_named";
    in_own_process(test, 0, || on_mesh(RANKS, lacks_the_peer));
}

fn lacks_the_peer(Rank { nccl, device }: Rank) {
    let rank = nccl.rank();
    let timeout = Duration::from_secs(2);
    let groups = dimensions(rank).each_ref().map(|plan| nccl.subgroup(plan).unwrap());
    if rank == 3 {
        return std::thread::sleep(timeout + Duration::from_secs(5));
    }
    let group = &*groups[usize::from(rank < 2)];
    let other = 1 - group.rank();
    let mut buffer = Incoming::new(group, ones(&device, 2 * LEN));
    let send = (Operation::Send { to: other, tag: 0 }, 0..LEN);
    let receive = (Operation::Receive { from: other, tag: 0 }, LEN..2 * LEN);
    buffer.start_group([send, receive]).unwrap();
    buffer.wait(&(0..LEN), soon(), |_| ()).unwrap();
    let error = nccl.settle(timeout, &mut |_| ()).unwrap_err();
    assert_eq!(error.missing_ranks(), [3], "{error}");
    let names = ["data group of ranks [0, 2]", "data group of ranks [1, 3]"];
    let name = names.get(rank).unwrap_or(&"shard group of ranks [2, 3]");
    let expected = format!("grouped messages of {} bytes in the {name} (number 1 of 1)", 8 * LEN);
    assert!(error.to_string().starts_with(&expected), "{error}");
    let dead = groups[0].barrier(soon());
    assert!(matches!(dead, Err(Error::Dead { .. })), "everything is dead: {dead:?}");
}

/// Plants mistakes, which the emulated NCCL finds: real ranks would wait for each other for ever.
#[test]
fn groups_in_different_orders_are_found() {
    let test = "mesh::groups_in_different_orders_are_found";
    is_found(test, "the ranks launched operations in different orders", |rank, groups, start| {
        let is_turned = rank == 1 || rank == 2;
        let [first, second] = if is_turned { [1, 0] } else { [0, 1] };
        start(&*groups[first], SUM, LEN);
        start(&*groups[second], SUM, LEN);
    });
}

#[test]
fn grouped_messages_in_different_orders_are_found() {
    let test = "mesh::grouped_messages_in_different_orders_are_found";
    is_found(test, "the ranks launched operations in different orders", |rank, groups, start| {
        let is_turned = rank == 1 || rank == 2;
        for index in if is_turned { [1, 0] } else { [0, 1] } {
            let group = &*groups[index];
            let other = 1 - group.rank();
            let send = Operation::Send { to: other, tag: 0 };
            start(group, &[send, Operation::Receive { from: other, tag: 0 }], LEN);
        }
    });
}

/// Ranks 1 and 2 receive in a group in which nobody sends.
#[test]
fn messages_in_another_group_are_found() {
    let test = "mesh::messages_in_another_group_are_found";
    is_found(test, "the ranks launched operations in different orders", |rank, groups, start| {
        let is_wrong = rank == 1 || rank == 2;
        let group = &*groups[usize::from(is_wrong)];
        let other = 1 - group.rank();
        let receive = Operation::Receive { from: other, tag: 0 };
        let message = if is_wrong { receive } else { Operation::Send { to: other, tag: 0 } };
        start(group, &[message], LEN);
    });
}

#[test]
fn a_message_of_another_length_is_found() {
    let test = "mesh::a_message_of_another_length_is_found";
    is_found(test, "elements (type 1): message 1 of the pair", |rank, groups, start| {
        let group = &*groups[1];
        let other = 1 - group.rank();
        let send = Operation::Send { to: other, tag: 0 };
        let receive = Operation::Receive { from: other, tag: 0 };
        start(group, &[send, receive], if rank == 3 { LEN / 2 } else { LEN });
    });
}

#[test]
fn a_buffer_of_another_length_in_one_group_is_found() {
    let test = "mesh::a_buffer_of_another_length_in_one_group_is_found";
    is_found(test, "of 600 elements (type 7, operation 0", |rank, groups, start| {
        start(&*groups[0], SUM, LEN);
        start(&*groups[1], SUM, if rank == 3 { LEN / 2 } else { LEN });
    });
}

const SUM: &[Operation] = &[Operation::AllReduceSum];

/// Starts an operation, or messages, of so many elements each in a group.
type Start<'a> = dyn FnMut(&dyn Collective, &[Operation], usize) + 'a;

/// Expects the emulated NCCL to end the process with this text. `submit` takes a rank and its
/// groups.
fn is_found(
    test: &str,
    expected: &str,
    submit: impl Fn(usize, &[Box<dyn Collective>; 2], &mut Start<'_>) + Sync,
) {
    let output = own_process(test, 0, || {
        on_mesh(RANKS, |Rank { nccl, device }| {
            let rank = nccl.rank();
            let groups = dimensions(rank).each_ref().map(|plan| nccl.subgroup(plan).unwrap());
            let mut buffers: Vec<_> = (0..4).map(|_| ones(&device, LEN)).collect();
            let mut left = buffers.iter_mut();
            submit(rank, &groups, &mut |group, operations, len| {
                let buffer = |view: ViewMut<'_, f32>| RawBuffer::of(view.slice(0..len));
                let message = |&operation: &Operation| Message {
                    operation,
                    buffer: buffer(left.next().unwrap().view_mut()),
                };
                let messages: Vec<_> = operations.iter().map(message).collect();
                // SAFETY: the buffers end with this process, which settles before.
                let ticket = unsafe {
                    match messages[..] {
                        [Message { operation: Operation::AllReduceSum, buffer }] => {
                            group.submit(Channel::Data, Operation::AllReduceSum, buffer)
                        }
                        _ => group.submit_group(Channel::Data, &messages),
                    }
                };
                assert_eq!(group.join(ticket.unwrap(), soon()).unwrap(), None);
            });
            let settled = nccl.settle(TERMS.timeout, &mut |_| ());
            panic!("not found: {settled:?}");
        });
    });
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("emulated CUDA: NCCL: ") && text.contains(expected), "{text}");
}
