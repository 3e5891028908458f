//! Steady state must not allocate.

use std::time::{Duration, Instant};

use support::counting::own_calls;
use yardstick_collectives::{Collective, Operation, scope};

/// Starting and waiting allocate nothing on this thread, after a warm-up.
pub(crate) fn steady_state_allocates_nothing(collective: &dyn Collective) {
    let mut buffers = vec![vec![1f32; 12_000]; 8];
    let mut flags = [0f64; 4];
    let mut step = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        scope(collective, |scope| {
            for buffer in &mut buffers {
                drop(scope.start(Operation::ReduceScatterSum, buffer).unwrap());
            }
            collective.all_reduce_sum(&mut flags, deadline).unwrap();
        });
        collective.barrier(deadline).unwrap();
    };
    (0..3).for_each(|_| step());
    let counted = own_calls(|| (3..20).for_each(|_| step()));
    assert_eq!(counted, 0, "allocations on {}", collective.backend());
    assert_eq!(own_calls(|| drop(std::hint::black_box(Box::new(1)))), 1, "the counter counts");
}
