//! Bytes that all ranks together read to restore their state, and the time it took.

use std::time::Duration;

use checkpoint::SourceBytes;

use crate::failure::Outcome;
use crate::ranks::Ranks;
use record::{Recovery, RecoverySource};

/// Combines the time and the sources of each rank; the result is equal on all ranks. Collective.
pub(super) fn of_all_ranks(
    own: Duration,
    sources: &[SourceBytes],
    ranks: Ranks<'_>,
) -> Outcome<Recovery> {
    let mut numbers = vec![own.as_nanos() as u64];
    numbers.extend(sources.iter().flat_map(|source| [source.bytes, source.from_peers]));
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut slowest = 0;
    let mut sums = vec![0; 2 * sources.len()];
    for rank in ranks.gather_bytes(&bytes)? {
        let (numbers, _) = rank.as_chunks();
        let mut numbers = numbers.iter().map(|&number| u64::from_le_bytes(number));
        slowest = slowest.max(numbers.next().unwrap_or(0));
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    let named = sources.iter().zip(sums.chunks_exact(2)).map(|(source, sum)| RecoverySource {
        tier: source.tier.clone(),
        bytes: sum[0],
        from_peers_bytes: sum[1],
    });
    let seconds = Duration::from_nanos(slowest).as_secs_f64();
    Ok(Recovery { seconds, sources: named.collect(), weights: None })
}
