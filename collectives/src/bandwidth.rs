//! Bandwidth accounting, with the definitions of nccl-tests.

use std::time::Duration;

use crate::Operation;

/// Two views of how fast an operation moved data, in 10^9 bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Size of the buffer over time: what the caller sees.
    pub algorithm_gb_per_s: f64,
    /// The same scaled to what each rank's link must carry at least: comparable between
    /// operations and world sizes, and with the link's rated speed.
    pub bus_gb_per_s: f64,
}

/// Bandwidth of an operation on a whole buffer of `bytes` (for reduce-scatter and all-gather all R
/// parts together) over `world` ranks. `None` for a barrier and for a time of zero.
///
/// Factors from algorithm to bus bandwidth for n ranks, nccl-tests `doc/PERFORMANCE.md`:
/// all-reduce 2 (n - 1) / n; reduce-scatter and all-gather (n - 1) / n; broadcast and point to
/// point 1.
pub fn bus_bandwidth(
    operation: Operation,
    bytes: usize,
    world: usize,
    elapsed: Duration,
) -> Option<Bandwidth> {
    let n = world as f64;
    let factor = match operation {
        Operation::AllReduceSum => 2.0 * (n - 1.0) / n,
        Operation::ReduceScatterSum | Operation::AllGather => (n - 1.0) / n,
        Operation::Broadcast { .. } | Operation::Send { .. } | Operation::Receive { .. } => 1.0,
        Operation::Barrier => return None,
    };
    if elapsed.is_zero() {
        return None;
    }
    let algorithm_gb_per_s = bytes as f64 / elapsed.as_secs_f64() / 1e9;
    Some(Bandwidth { algorithm_gb_per_s, bus_gb_per_s: algorithm_gb_per_s * factor })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 4 GB in 2 s on 4 ranks is 2 GB/s; each rank's link carries 3 of 4 parts, twice for
    /// an all-reduce.
    #[test]
    fn factors_follow_nccl_tests() {
        let bandwidth =
            |operation| bus_bandwidth(operation, 4_000_000_000, 4, Duration::from_secs(2));
        for (operation, bus) in [
            (Operation::AllReduceSum, 3.0),
            (Operation::ReduceScatterSum, 1.5),
            (Operation::AllGather, 1.5),
            (Operation::Broadcast { root: 0 }, 2.0),
            (Operation::Send { to: 1, tag: 0 }, 2.0),
        ] {
            let found = bandwidth(operation).unwrap();
            assert_eq!((found.algorithm_gb_per_s, found.bus_gb_per_s), (2.0, bus), "{operation}");
        }
        assert_eq!(bandwidth(Operation::Barrier), None);
        assert_eq!(bus_bandwidth(Operation::AllReduceSum, 1, 4, Duration::ZERO), None);
    }
}
