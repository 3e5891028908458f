//! Counts allocations of the calling thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use yardstick_collectives::{Collective, Operation, scope};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: it is the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and is not the one we look at.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// After a warm-up, starting and waiting allocate nothing on this thread.
pub(crate) fn steady_state_allocates_nothing(collective: &dyn Collective) {
    let mut buffers = vec![vec![1f32; 12_000]; 8];
    let mut flags = [0f64; 4];
    let mut before = 0;
    for step in 0..20 {
        if step == 3 {
            before = COUNT.get();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        scope(collective, |scope| {
            for buffer in &mut buffers {
                drop(scope.start(Operation::ReduceScatterSum, buffer).unwrap());
            }
            collective.all_reduce_sum(&mut flags, deadline).unwrap();
        });
        collective.barrier(deadline).unwrap();
    }
    assert_eq!(COUNT.get() - before, 0, "allocations on {}", collective.backend());
    drop(std::hint::black_box(Box::new(1)));
    assert_ne!(COUNT.get() - before, 0, "the counter counts");
}
