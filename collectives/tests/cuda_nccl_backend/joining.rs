//! Operations that a device waits for instead of the host.

use std::time::{Duration, Instant};

use device::cuda::Cuda;
use device::{Allocator, DeviceBuffer, View};
use yardstick_collectives::{
    Channel, Collective, Error, Incoming, Nccl, OUTSTANDING_MAX, Operation, Position, Settled,
};

use crate::{Rank, TERMS, in_own_process, on_ranks, on_two_ranks, soon, worlds};
use support::counting::own_calls;

const LEN: usize = 600;

/// Elements on a device.
fn on_device(device: &Cuda, elements: &[f32]) -> DeviceBuffer<f32> {
    let mut buffer = Allocator::cuda(device).zeros(elements.len());
    device.write(buffer.view_mut(), elements).unwrap();
    buffer
}

fn read(device: &Cuda, found: View<'_, f32>) -> Vec<f32> {
    let mut elements = vec![0.0; found.len()];
    device.read(found, &mut elements).unwrap();
    elements
}

fn settle(nccl: &Nccl) -> Vec<Settled> {
    let mut settled = Vec::new();
    nccl.settle(TERMS.timeout, &mut |operation| settled.push(operation)).unwrap();
    settled
}

/// Computation before an operation, the operation, and computation after it, on two streams.
#[test]
fn computation_before_and_after_an_operation_is_in_order() {
    let test = "joining::computation_before_and_after_an_operation_is_in_order";
    in_own_process(test, 3000, || {
        for world in worlds() {
            on_ranks(world, in_order);
        }
    });
}

fn in_order(Rank { nccl, device }: Rank) {
    let world = nccl.world() as f32;
    let ones = on_device(&device, &[1.0; LEN]);
    for _ in 0..5 {
        let mut summed = Incoming::new(&nccl, on_device(&device, &[0.0; LEN]));
        let mut after = on_device(&device, &[0.0; LEN]);
        device.copy(summed.get_mut(0..LEN), ones.view()).unwrap();
        summed.start(Operation::AllReduceSum, 0..LEN).unwrap();
        summed.wait(&(0..LEN), soon(), |_| panic!("the host does not wait")).unwrap();
        device.copy(after.view_mut(), summed.get(0..LEN)).unwrap();
        device.clear(summed.get_mut(0..LEN)).unwrap();
        assert_eq!(settle(&nccl).len(), 1);
        assert_eq!(read(&device, after.view()), [world; LEN]);
        assert_eq!(read(&device, summed.get(0..LEN)), [0.0; LEN]);
    }
    nccl.close(soon()).unwrap();
}

#[test]
fn settled_operations_are_reported_in_order_with_their_times() {
    let test = "joining::settled_operations_are_reported_in_order_with_their_times";
    in_own_process(test, 1000, || on_ranks(*worlds().end(), reports));
}

fn reports(Rank { nccl, device }: Rank) {
    let collective: &dyn Collective = &nccl;
    let world = collective.world();
    let allocator = Allocator::cuda(&device);
    let buffer = collective.buffer::<f32>(&allocator, 3 * LEN * world, soon()).unwrap();
    assert_eq!(collective.warning(), None, "the buffer is registered");
    let mut buffer = Incoming::new(collective, buffer);
    let operations = [Operation::AllReduceSum, Operation::ReduceScatterSum, Operation::AllGather];
    let range = |index: usize| index * LEN * world..(index + 1) * LEN * world;
    let before = Instant::now();
    for (index, operation) in operations.into_iter().enumerate() {
        buffer.start(operation, range(index)).unwrap();
    }
    let nothing = |_| unreachable!("nothing is over when it is joined");
    buffer.wait(&range(1), soon(), nothing).unwrap();
    assert!(buffer.is_in_flight(&range(0)) && !buffer.is_in_flight(&range(1)));
    buffer.wait(&(0..3 * LEN * world), soon(), nothing).unwrap();
    let settled = settle(&nccl);
    let after = Instant::now();
    let found: Vec<_> = settled.iter().map(|settled| settled.operation).collect();
    assert_eq!(found, [operations[1], operations[0], operations[2]], "as they were joined");
    for Settled { timing, wait_start, .. } in settled {
        assert_eq!(timing.bytes, 4 * LEN * world);
        assert!(before <= timing.started && timing.started <= timing.ended);
        assert!(timing.ended <= after && before <= wait_start && wait_start <= after);
    }
    assert!(settle(&nccl).is_empty(), "once");
}

/// Computation takes longer than an operation may.
#[test]
fn computation_before_an_operation_does_not_count() {
    let test = "joining::computation_before_an_operation_does_not_count";
    in_own_process(test, 3000, || {
        on_ranks(*worlds().end(), |Rank { nccl, device }| {
            let mut buffer = on_device(&device, &[1.0; LEN]);
            let start = Instant::now();
            // Each is delayed by 1.5 ms on average.
            for _ in 0..1200 {
                device.fill(buffer.view_mut(), 0).unwrap();
            }
            let mut buffer = Incoming::new(&nccl, buffer);
            buffer.start(Operation::AllReduceSum, 0..LEN).unwrap();
            buffer.wait(&(0..LEN), soon(), |_| ()).unwrap();
            let timeout = Duration::from_secs(1);
            nccl.settle(timeout, &mut |_| ()).unwrap();
            let name = &device.properties().name;
            let took = start.elapsed();
            assert!(took > timeout || !name.contains("Emulated"), "too fast a test: {took:?}");
        });
    });
}

/// The last rank leaves out the last of three operations.
#[test]
fn an_operation_that_is_not_over_is_named_by_its_number() {
    let test = "joining::an_operation_that_is_not_over_is_named_by_its_number";
    in_own_process(test, 0, || {
        let world = *worlds().end();
        on_ranks(world, |Rank { nccl, device }| lacks_one(&nccl, &device));
    });
}

fn lacks_one(nccl: &Nccl, device: &Cuda) {
    let timeout = Duration::from_secs(2);
    let is_absent = nccl.rank() + 1 == nccl.world();
    let count = if is_absent { 2 } else { 3 };
    let buffer = |_| Incoming::new(nccl, on_device(device, &[1.0; LEN]));
    let mut buffers: Vec<_> = (0..count).map(buffer).collect();
    for buffer in &mut buffers {
        buffer.start(Operation::AllReduceSum, 0..LEN).unwrap();
        buffer.wait(&(0..LEN), soon(), |_| ()).unwrap();
    }
    let outcome = nccl.settle(timeout, &mut |_| ());
    if is_absent {
        outcome.unwrap();
        return std::thread::sleep(timeout + Duration::from_secs(5));
    }
    let error = outcome.unwrap_err();
    let Error::Deadline { position, peers, bytes, .. } = &error else { panic!("{error}") };
    assert_eq!(*position, Some(Position { number: 3, of: 3 }));
    assert_eq!((&peers[..], *bytes), (&[nccl.world() - 1][..], 4 * LEN));
    let collective: &dyn Collective = nccl;
    assert!(matches!(collective.barrier(soon()), Err(Error::Dead { .. })), "everything is dead");
}

/// A supervisor reports a lost peer to the thread that handles signals.
#[test]
fn waits_end_when_another_thread_abandons_the_group() {
    let test = "joining::waits_end_when_another_thread_abandons_the_group";
    in_own_process(test, 0, || on_two_ranks(|Rank { nccl, device }| is_abandoned(&nccl, &device)));
}

/// Rank 1 takes no part in the operation for which rank 0 waits.
fn is_abandoned(nccl: &Nccl, device: &Cuda) {
    const BEFORE: Duration = Duration::from_millis(300);
    if nccl.rank() == 1 {
        return std::thread::sleep(BEFORE + Duration::from_secs(5));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(BEFORE);
            nccl.abandon("a peer is lost");
        });
        let mut buffer = Incoming::new(nccl, on_device(device, &[1.0; LEN]));
        let started = buffer.start(Operation::AllReduceSum, 0..LEN);
        let joined = started.and_then(|()| buffer.wait(&(0..LEN), soon(), |_| ()));
        let settled = joined.and_then(|()| nccl.settle(TERMS.timeout, &mut |_| ()));
        let error = settled.unwrap_err();
        assert!(matches!(error, Error::Dead { .. }), "{error}");
        assert!(error.to_string().contains("a peer is lost"), "{error}");
        assert!(nccl.memory_at_risk() && nccl.close(soon()).is_err());
    });
}

/// A stream that waits takes only so much work; then the host would block without a deadline.
#[test]
fn the_host_is_not_far_ahead_of_a_gather_that_hangs() {
    let test = "joining::the_host_is_not_far_ahead_of_a_gather_that_hangs";
    in_own_process(test, 0, || {
        on_two_ranks(|rank| computes_behind(Operation::AllGather, &rank.nccl, &rank.device));
    });
}

#[test]
fn the_host_is_not_far_ahead_of_a_reduce_scatter_that_hangs() {
    let test = "joining::the_host_is_not_far_ahead_of_a_reduce_scatter_that_hangs";
    in_own_process(test, 0, || {
        on_two_ranks(|rank| computes_behind(Operation::ReduceScatterSum, &rank.nccl, &rank.device));
    });
}

/// Rank 1 starts none of the operations behind each of which rank 0 computes.
fn computes_behind(operation: Operation, nccl: &Nccl, device: &Cuda) {
    if nccl.rank() == 1 {
        return std::thread::sleep(TERMS.timeout + Duration::from_secs(5));
    }
    let mut buffers = [(); 3].map(|()| Incoming::new(nccl, on_device(device, &[1.0; LEN])));
    let mut other = on_device(device, &[1.0; LEN]);
    let mut outcomes = Vec::new();
    for buffer in &mut buffers {
        buffer.start(operation, 0..LEN).unwrap();
        let joined = buffer.wait(&(0..LEN), soon(), |_| panic!("the device waits"));
        outcomes.push(joined.map_err(|error| error.to_string()));
        for _ in 0..450 {
            device.fill(other.view_mut(), 0).unwrap();
        }
        if outcomes.last().is_some_and(Result::is_err) {
            break;
        }
    }
    assert_eq!(outcomes[0], Ok(()), "the device waits");
    let error = outcomes.last().unwrap().clone().unwrap_err();
    assert!(error.contains("(number 1 of 2)") && error.contains("missing ranks: [1]"), "{error}");
}

/// A stream also takes only so many operations that nobody waits for.
#[test]
fn the_host_is_not_far_ahead_of_operations_that_hang() {
    let test = "joining::the_host_is_not_far_ahead_of_operations_that_hang";
    in_own_process(test, 0, || {
        on_two_ranks(|Rank { nccl, device }| {
            if nccl.rank() == 1 {
                return std::thread::sleep(TERMS.timeout + Duration::from_secs(5));
            }
            let zeros = Allocator::cuda(&device).zeros::<f32>(OUTSTANDING_MAX);
            let mut buffer = Incoming::new(&nccl, zeros);
            let mut start = |index| buffer.start(Operation::AllReduceSum, index..index + 1);
            let error = (0..OUTSTANDING_MAX / 4).find_map(|index| start(index).err()).unwrap();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
        });
    });
}

#[test]
fn what_nccl_is_not_used_for_is_refused() {
    let test = "joining::what_nccl_is_not_used_for_is_refused";
    in_own_process(test, 0, || on_ranks(*worlds().end(), refuses));
}

fn refuses(Rank { nccl, device }: Rank) {
    let collective: &dyn Collective = &nccl;
    let mut floats = on_device(&device, &vec![1.0; LEN + 1]);
    let mut bytes = Allocator::cuda(&device).zeros::<u8>(LEN);
    let mut run = |channel, operation| {
        collective.run(channel, operation, floats.view_mut(), soon()).map(drop).unwrap_err()
    };
    let control = run(Channel::Control, Operation::AllReduceSum);
    let no_operation = run(Channel::Data, Operation::Messages);
    for error in [control, no_operation] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    if collective.world() > 1 {
        let uneven = run(Channel::Data, Operation::AllGather);
        assert!(matches!(uneven, Error::Mismatch { .. }), "{uneven}");
    }
    let sum = Operation::AllReduceSum;
    let bytes = collective.run(Channel::Data, sum, bytes.view_mut(), soon()).unwrap_err();
    assert!(matches!(bytes, Error::Unsupported { .. }), "{bytes}");
    // Nothing of this has damaged the backend.
    collective.run(Channel::Data, sum, floats.view_mut(), soon()).unwrap();
    assert_eq!(read(&device, floats.view()), vec![collective.world() as f32; LEN + 1]);
}

#[test]
fn as_many_operations_fit_as_on_every_backend() {
    let test = "joining::as_many_operations_fit_as_on_every_backend";
    in_own_process(test, 0, || {
        on_ranks(*worlds().end(), |Rank { nccl, device }| {
            let zeros = Allocator::cuda(&device).zeros::<f32>(OUTSTANDING_MAX + 1);
            let mut buffer = Incoming::new(&nccl, zeros);
            for index in 0..OUTSTANDING_MAX {
                buffer.start(Operation::AllReduceSum, index..index + 1).unwrap();
            }
            let last = OUTSTANDING_MAX..OUTSTANDING_MAX + 1;
            let mut more = Incoming::new(&nccl, Allocator::cuda(&device).zeros::<f32>(1));
            let error = more.start(Operation::AllReduceSum, 0..1).unwrap_err();
            assert!(matches!(error, Error::Full { capacity: OUTSTANDING_MAX, .. }), "{error}");
            buffer.wait(&(0..1), soon(), |_| ()).unwrap();
            buffer.start(Operation::AllReduceSum, last).unwrap();
        });
    });
}

/// A step has an operation for each bucket in several passes, and its end settles all of them.
#[test]
fn any_number_of_operations_may_have_been_joined() {
    let test = "joining::any_number_of_operations_may_have_been_joined";
    in_own_process(test, 0, || {
        on_ranks(*worlds().end(), |Rank { nccl, device }| {
            let count = 2 * OUTSTANDING_MAX + 3;
            let mut buffer = Incoming::new(&nccl, on_device(&device, &vec![1.0; 2 * count]));
            // Of one element and two in turn.
            let range = |index: usize| 2 * index..2 * index + 1 + index % 2;
            for index in 0..count {
                buffer.start(Operation::AllReduceSum, range(index)).unwrap();
                buffer.wait(&range(index), soon(), |_| ()).unwrap();
            }
            let settled = settle(&nccl).into_iter().map(|settled| settled.timing.bytes);
            let expected = (0..count).map(|index| 4 * range(index).len());
            assert!(settled.eq(expected), "in the order in which they were joined");
            let sums = read(&device, buffer.get(0..2 * count));
            let is_summed = |index: usize| range(index / 2).contains(&index);
            let world = nccl.world() as f32;
            let expected = |index| if is_summed(index) { world } else { 1.0 };
            assert!(sums.into_iter().eq((0..2 * count).map(expected)));
            assert!(settle(&nccl).is_empty(), "once");
        });
    });
}

#[test]
fn steady_state_allocates_nothing() {
    let test = "joining::steady_state_allocates_nothing";
    in_own_process(test, 0, || {
        on_ranks(*worlds().end(), |Rank { nccl, device }| {
            let zeros = Allocator::cuda(&device).zeros::<f32>(8 * LEN);
            let mut buffer = Incoming::new(&nccl, zeros);
            let mut step = || {
                for index in 0..8 {
                    let range = index * LEN..(index + 1) * LEN;
                    buffer.start(Operation::ReduceScatterSum, range).unwrap();
                }
                buffer.wait(&(0..8 * LEN), soon(), |_| ()).unwrap();
                nccl.settle(TERMS.timeout, &mut |_| ()).unwrap();
            };
            (0..3).for_each(|_| step());
            assert_eq!(own_calls(|| (3..10).for_each(|_| step())), 0);
        });
    });
}
