//! Steady state must not allocate.

use std::time::{Duration, Instant};

use device::{Allocator, Device};
use support::counting::own_calls;
use yardstick_collectives::{AllToAll, Channel, Collective, Incoming, Operation, Parts};

/// Elements of a buffer.
const LEN: usize = 12_000;

/// Starting and waiting allocate nothing on this thread, after a warm-up.
pub(crate) fn steady_state_allocates_nothing(collective: &dyn Collective) {
    let mut buffers =
        [(); 8].map(|()| Incoming::<f32>::new(collective, Allocator::host().zeros(LEN)));
    let mut flags = [0f64; 4];
    let mut exchange = exchange(collective);
    let mut step = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        for buffer in &mut buffers {
            buffer.start(Operation::ReduceScatterSum, 0..LEN).unwrap();
        }
        collective.all_reduce_sum(&mut flags, deadline).unwrap();
        for buffer in &mut buffers {
            buffer.wait(&(0..LEN), deadline, |_| ()).unwrap();
        }
        exchange(deadline);
        collective.barrier(deadline).unwrap();
    };
    (0..3).for_each(|_| step());
    let counted = own_calls(|| (3..20).for_each(|_| step()));
    assert_eq!(counted, 0, "allocations on {}", collective.backend());
    assert_eq!(own_calls(|| drop(std::hint::black_box(Box::new(1)))), 1, "the counter counts");
}

/// Grouped messages with the neighbours, and parts of different lengths for all.
fn exchange(collective: &dyn Collective) -> impl FnMut(Instant) {
    let (own, world) = (collective.rank(), collective.world());
    let mut all_to_all = AllToAll::new(&Device::Host, world);
    let lens: Vec<usize> = (0..world).map(|other| 100 * (own + other)).collect();
    let [mut sent, mut received] = [(); 2].map(|()| vec![0_f32; lens.iter().sum()]);
    move |deadline| {
        let sent = Parts { elements: (&mut sent).into(), lens: &lens };
        let parts = Parts { elements: (&mut received).into(), lens: &lens };
        all_to_all.run(collective, sent, parts, deadline).unwrap();
        if world == 1 {
            return;
        }
        let [to, from] = [(own + 1) % world, (own + world - 1) % world];
        let mut message = [1_u8; 2];
        let (sent, received) = message.split_at_mut(1);
        let send = (Operation::Send { to, tag: 0 }, sent.into());
        let receive = (Operation::Receive { from, tag: 0 }, received.into());
        collective.run_group(Channel::Data, [send, receive], deadline).unwrap();
    }
}
