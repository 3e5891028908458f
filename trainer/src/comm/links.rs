//! Single links, which a collective operation over all of them hides.

use std::time::{Duration, Instant};

use collectives::{Channel, Operation, scope};
use launch::bootstrap::World;
use serde::{Deserialize, Serialize};

use super::MEASURE_TIME;
use crate::failure::Outcome;
use crate::ranks::Ranks;

/// How fast data went from one end to another, alone on these two ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes_per_second: f64,
}

/// How fast all ranks exchanged data with a partner at the same time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cut {
    /// Difference of the numbers of two partners.
    pub(crate) distance: usize,
    /// Of all ranks together, in both directions.
    pub(crate) bytes_per_second: f64,
    /// Each rank's receiving.
    pub(crate) links: Vec<Link>,
}

/// Messages of a measurement, at most.
const MESSAGES_MAX: u32 = 64;

const TAG: u16 = 12;
const TAG_OF_ANSWER: u16 = 13;

/// Measures links on one rank.
pub(super) struct Links<'run> {
    ranks: Ranks<'run>,
    /// The ranks between which pairs are measured: one of each node, or all of a single node.
    ends: Vec<usize>,
    message: Vec<f32>,
    received: Vec<f32>,
}

impl<'run> Links<'run> {
    pub(super) fn new(ranks: Ranks<'run>, world: &World, message_bytes: u64) -> Self {
        let first_of_host = |rank: &usize| !world.hosts[..*rank].contains(&world.hosts[*rank]);
        let of_nodes: Vec<usize> = (0..ranks.world()).filter(first_of_host).collect();
        let ends = if of_nodes.len() > 1 { of_nodes } else { (0..ranks.world()).collect() };
        let elements = (message_bytes as usize / size_of::<f32>()).max(1);
        Self { ranks, ends, message: vec![1.0; elements], received: vec![0.0; elements] }
    }

    /// Every pair in both directions: rounds of pairs that have no end in common.
    pub(super) fn pairs(&mut self) -> Outcome<Vec<Link>> {
        let mut own = Vec::new();
        for round in rounds(&self.ends) {
            for is_back in [false, true] {
                let directed = round.iter().map(|&(a, b)| if is_back { (b, a) } else { (a, b) });
                let rank = self.ranks.rank();
                let link = directed.into_iter().find(|(from, to)| *from == rank || *to == rank);
                self.ranks.collective.barrier(self.ranks.deadline())?;
                if let Some((from, to)) = link {
                    own.extend(self.one_way(from, to)?);
                }
            }
        }
        let mut links: Vec<Link> = self.ranks.gather(&own)?.into_iter().flatten().collect();
        links.sort_by_key(|link| (link.from, link.to));
        Ok(links)
    }

    /// Sends or receives; the sender returns how fast it went.
    fn one_way(&mut self, from: usize, to: usize) -> Outcome<Option<Link>> {
        // How many the sender has time for is known after the second, as the first connects.
        self.send_or_receive(from, to, 1)?;
        let took = self.send_or_receive(from, to, 1)?;
        let mut count = [messages(took) as f32];
        let operation = |is_sender| match is_sender {
            true => Operation::Send { to, tag: TAG },
            false => Operation::Receive { from, tag: TAG },
        };
        let is_sender = self.ranks.rank() == from;
        let deadline = self.ranks.deadline();
        self.ranks.collective.run(Channel::Data, operation(is_sender), &mut count[..], deadline)?;
        let count = count[0] as u32;
        let took = self.send_or_receive(from, to, count)?;
        let bytes = self.message.len() * size_of::<f32>() * count as usize;
        let bytes_per_second = bytes as f64 / took.as_secs_f64();
        Ok(is_sender.then_some(Link { from, to, bytes_per_second }))
    }

    /// So many messages, until the receiver has answered the last one.
    fn send_or_receive(&mut self, from: usize, to: usize, count: u32) -> Outcome<Duration> {
        let collective = self.ranks.collective;
        let mut answer = [0.0_f32];
        let deadline = self.ranks.deadline();
        let start = Instant::now();
        let is_sender = self.ranks.rank() == from;
        for _ in 0..count {
            let (operation, buffer) = if is_sender {
                (Operation::Send { to, tag: TAG }, &mut self.message)
            } else {
                (Operation::Receive { from, tag: TAG }, &mut self.received)
            };
            collective.run(Channel::Data, operation, &mut buffer[..], deadline)?;
        }
        let operation = if is_sender {
            Operation::Receive { from: to, tag: TAG_OF_ANSWER }
        } else {
            Operation::Send { to: from, tag: TAG_OF_ANSWER }
        };
        collective.run(Channel::Data, operation, &mut answer[..], deadline)?;
        Ok(start.elapsed())
    }

    /// All ranks exchange with a partner at a distance of 1, 2, 4, ... at the same time.
    pub(super) fn bisection(&mut self) -> Outcome<Vec<Cut>> {
        let world = self.ranks.world();
        let distances = (0..).map(|bit| 1_usize << bit).take_while(|distance| *distance < world);
        distances.collect::<Vec<_>>().into_iter().map(|distance| self.cut(distance)).collect()
    }

    fn cut(&mut self, distance: usize) -> Outcome<Cut> {
        let partner = self.ranks.rank() ^ distance;
        let has_partner = partner < self.ranks.world();
        let mut took = Duration::ZERO;
        let mut count = 1;
        // The first connects, the second says how many there is time for.
        for is_last in [false, false, true] {
            self.ranks.collective.barrier(self.ranks.deadline())?;
            let start = Instant::now();
            for _ in 0..count {
                if has_partner {
                    self.exchange(partner)?;
                }
            }
            took = start.elapsed();
            if !is_last {
                let all: Vec<u32> = self.ranks.gather(&messages(took))?;
                count = all.into_iter().min().unwrap_or(1);
            }
        }
        let bytes = self.message.len() * size_of::<f32>() * count as usize;
        let own = has_partner.then(|| Link {
            from: partner,
            to: self.ranks.rank(),
            bytes_per_second: bytes as f64 / took.as_secs_f64(),
        });
        let links: Vec<Link> = self.ranks.gather(&own)?.into_iter().flatten().collect();
        let bytes_per_second = links.iter().map(|link| link.bytes_per_second).sum();
        Ok(Cut { distance, bytes_per_second, links })
    }

    fn exchange(&mut self, partner: usize) -> Outcome<()> {
        let deadline = self.ranks.deadline();
        let Self { ranks, message, received, .. } = self;
        scope(ranks.collective, |scope| {
            let send = scope.start(Operation::Send { to: partner, tag: TAG }, &mut message[..])?;
            let receive = Operation::Receive { from: partner, tag: TAG };
            let receive = scope.start(receive, &mut received[..])?;
            send.wait(deadline)?;
            receive.wait(deadline)?;
            Ok(())
        })
    }
}

/// As many messages as there is time for, after one took so long.
fn messages(took: Duration) -> u32 {
    let fitting = MEASURE_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
    (fitting as u32).clamp(1, MESSAGES_MAX)
}

/// Rounds in which each end is in one pair at most, and after which all pairs have met: one end
/// stays in place and the others go around.
fn rounds(ends: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let mut seats: Vec<Option<usize>> = ends.iter().copied().map(Some).collect();
    if seats.len() % 2 == 1 {
        seats.push(None);
    }
    let count = seats.len();
    (1..count)
        .map(|_| {
            let round = (0..count / 2).filter_map(|at| seats[at].zip(seats[count - 1 - at]));
            let round = round.collect();
            seats[1..].rotate_right(1);
            round
        })
        .collect()
}

/// A link is slow below this share of a good one's rate.
const SLOW_SHARE: f64 = 0.7;

/// Links that are far slower than a good one, the upper quartile of all, each with its share of
/// that rate, the slowest first. Not the median: one bad adapter of three makes most links slow.
pub(super) fn slow_links(links: &[Link]) -> Vec<(&Link, f64)> {
    let mut rates: Vec<f64> = links.iter().map(|link| link.bytes_per_second).collect();
    rates.sort_by(f64::total_cmp);
    let Some(&good) = rates.get(rates.len() * 3 / 4) else { return Vec::new() };
    let shares = links.iter().map(|link| (link, link.bytes_per_second / good));
    let mut found: Vec<_> = shares.filter(|(_, share)| *share < SLOW_SHARE).collect();
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    found
}

/// An end of which every link is slow, where there are others: more likely its adapter or cable
/// than the network between.
pub(super) fn slow_end(links: &[Link]) -> Option<usize> {
    let slow = slow_links(links);
    let ends: std::collections::BTreeSet<usize> = links.iter().map(|link| link.from).collect();
    let has = |link: &Link, end| link.from == end || link.to == end;
    let of_end = |end: usize| slow.iter().filter(|(link, _)| has(link, end)).count();
    let is_slow = |end: &usize| !slow.is_empty() && of_end(*end) == slow.len();
    let all_of = |end: &usize| links.iter().filter(|link| has(link, *end)).count();
    let mut found =
        ends.iter().copied().filter(|end| is_slow(end) && of_end(*end) * 2 >= all_of(end));
    let first = found.next().filter(|_| ends.len() > 2)?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_meets_once_and_no_end_twice_in_a_round() {
        for count in 2..9 {
            let ends: Vec<usize> = (0..count).map(|end| 10 * end).collect();
            let mut met = Vec::new();
            for round in rounds(&ends) {
                let mut busy: Vec<usize> = round.iter().flat_map(|pair| [pair.0, pair.1]).collect();
                busy.sort_unstable();
                busy.dedup();
                assert_eq!(busy.len(), 2 * round.len());
                met.extend(round.into_iter().map(|(a, b)| (a.min(b), a.max(b))));
            }
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), count * (count - 1) / 2, "{count} ends");
        }
    }

    fn links(ends: usize, rate: impl Fn(usize, usize) -> f64) -> Vec<Link> {
        let all = (0..ends).flat_map(|from| (0..ends).map(move |to| (from, to)));
        let other = all.filter(|(from, to)| from != to);
        other.map(|(from, to)| Link { from, to, bytes_per_second: rate(from, to) }).collect()
    }

    #[test]
    fn the_slow_link_is_named_and_the_end_of_which_all_are_slow() {
        let alike = links(4, |from, to| 10.0 + 0.1 * (from + to) as f64);
        assert!(slow_links(&alike).is_empty());
        let one = links(4, |from, to| if (from, to) == (2, 1) { 4.0 } else { 10.0 });
        let found: Vec<_> =
            slow_links(&one).iter().map(|(link, share)| (link.from, link.to, *share)).collect();
        assert_eq!(found, [(2, 1, 0.4)]);
        assert_eq!(slow_end(&one), None, "one link of many");
        let end = links(4, |from, to| if from == 3 || to == 3 { 2.0 } else { 10.0 });
        assert_eq!((slow_links(&end).len(), slow_end(&end)), (6, Some(3)));
        let two = links(2, |from, _| if from == 1 { 2.0 } else { 10.0 });
        assert_eq!((slow_links(&two).len(), slow_end(&two)), (1, None));
    }
}
