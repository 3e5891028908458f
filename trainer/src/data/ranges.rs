//! Processing of the ranges of a file by several threads.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;

use device::threads;

/// Cuts `0..size` into ranges of `step`, which `threads` threads take one after the other, the
/// calling thread among them. `worker` is called once on each thread and returns the function that
/// processes its ranges.
///
/// # Errors
/// The first error of the first thread that has one; ranges that were not begun then are left out.
pub(super) fn for_ranges<E, W>(
    size: u64,
    step: u64,
    threads: usize,
    worker: impl Fn() -> W + Sync,
) -> Result<(), E>
where
    E: Send,
    W: FnMut(Range<u64>) -> Result<(), E>,
{
    let next = AtomicU64::new(0);
    let run = || {
        let mut work = worker();
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= size {
                return Ok(());
            }
            if let Err(error) = work(start..size.min(start + step)) {
                next.store(size, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    scope(|scope| {
        let others: Vec<_> =
            (1..threads).map(|_| threads::spawn_scoped(scope, "ranges", run)).collect();
        let own = run();
        // The other threads take the ranges of a thread that cannot be started.
        let joined = others.into_iter().flatten().map(|other| other.join());
        joined.fold(own, |result, other| result.and(other.unwrap_or_else(|p| resume_unwind(p))))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_range_is_worked_on_once() {
        for size in [0, 1, 3, 7] {
            let seen = Mutex::new(Vec::new());
            let see = |range| {
                seen.lock().unwrap().push(range);
                Ok::<_, ()>(())
            };
            for_ranges(size, 3, 4, || see).unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_by_key(|range: &Range<u64>| range.start);
            let starts = (0..size).step_by(3);
            let expected: Vec<_> = starts.map(|start| start..size.min(start + 3)).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn an_error_ends_the_work_of_all() {
        let count = AtomicU64::new(0);
        let fail = |range: Range<u64>| {
            count.fetch_add(1, Ordering::Relaxed);
            if range.start < 4 { Err(range.start) } else { Ok(()) }
        };
        for_ranges(1 << 40, 1, 4, || fail).unwrap_err();
        assert!(count.into_inner() < 1 << 30);
    }
}
