//! System allocator with counters, for a test binary that says:
//!
//! ```text
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//! ```
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The allocator.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static OWN_CALLS: Cell<u64> = const { Cell::new(0) };
}
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Allocations of this thread while `body` runs.
pub fn own_calls(body: impl FnOnce()) -> u64 {
    let before = OWN_CALLS.get();
    body();
    OWN_CALLS.get() - before
}

/// The result of `body`, and the number and bytes of the allocations of all threads during it.
pub fn calls_and_bytes<T>(body: impl FnOnce() -> T) -> (T, u64, u64) {
    let calls = CALLS.load(Relaxed);
    let bytes = BYTES.load(Relaxed);
    let result = body();
    (result, CALLS.load(Relaxed) - calls, BYTES.load(Relaxed) - bytes)
}

/// Peak of the allocated bytes during `body`, relative to its start.
pub fn peak_bytes(body: impl FnOnce()) -> u64 {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    body();
    PEAK.load(Relaxed) - before
}

fn count(bytes: usize) {
    // A thread that is ending has no counter any more; it is not the one that is tested.
    let _ = OWN_CALLS.try_with(|calls| calls.set(calls.get() + 1));
    CALLS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is forwarded to the system allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size); // it may move, so that both blocks exist at the same time
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(start, layout) }
    }
}
