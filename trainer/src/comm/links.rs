//! Benchmark of single links, which a collective operation over all of them hides.

use std::time::{Duration, Instant};

use collectives::{Channel, Operation};
use launch::bootstrap::World;
use serde::{Deserialize, Serialize};

use super::MEASURE_TIME;
use super::slow::{SlowLinks, SlowPairs};
use crate::failure::Outcome;
use crate::ranks::Ranks;

/// Rate of data from one end to another, with no other traffic on these two ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes_per_second: f64,
}

/// Sender and receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    from: usize,
    to: usize,
}

impl Ends {
    pub(super) fn contains(self, rank: usize) -> bool {
        self.from == rank || self.to == rank
    }

    fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

impl Link {
    pub(super) fn ends(&self) -> Ends {
        let Self { from, to, .. } = *self;
        Ends { from, to }
    }
}

/// Links between every two ends, and the slow ones among them.
#[derive(Debug, Clone, Serialize)]
pub struct Pairs {
    pub(crate) links: Vec<Link>,
    pub(crate) slow: SlowPairs,
}

impl Pairs {
    pub(crate) fn new(links: Vec<Link>) -> Self {
        Self { slow: SlowPairs::among(&links), links }
    }
}

/// Rates at which all ranks exchanged data with a partner at the same time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cut {
    /// Difference between the rank numbers of two partners.
    pub(crate) distance: usize,
    /// Total of all ranks, in both directions, in the best measurement.
    pub(crate) bytes_per_second: f64,
    /// Receive rate of each rank in that measurement, while it sends to its partner: a slow
    /// direction may slow the other.
    pub(crate) links: Vec<Link>,
    /// Slow links by their best rates in any measurement.
    pub(crate) slow: SlowLinks,
}

impl Cut {
    /// Takes the total from a single measurement. A total over several never occurred: where links
    /// share a switch that is too slow for all of them, another link loses each time.
    fn new(distance: usize, Measured { runs, best }: Measured) -> Self {
        let totals = runs.into_iter().map(|links| Self {
            distance,
            bytes_per_second: links.iter().map(|link| link.bytes_per_second).sum(),
            links,
            slow: SlowLinks::among(&best),
        });
        let best = totals.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
        best.expect("measured at least once")
    }
}

/// Links that were measured several times.
struct Measured {
    /// Links of each measurement; the first has all links.
    runs: Vec<Vec<Link>>,
    /// All links, each with its best rate.
    best: Vec<Link>,
}

impl Measured {
    fn new(first: Vec<Link>) -> Self {
        Self { best: first.clone(), runs: vec![first] }
    }

    fn add(&mut self, again: Vec<Link>) {
        keep_better(&mut self.best, &again);
        self.runs.push(again);
    }
}

/// Largest number of messages in a measurement.
const MESSAGES_MAX: u32 = 64;

/// Number of times that links which seem slow are measured again.
const REPEATS_MAX: u32 = 2;

const TAG: u16 = 12;
const TAG_OF_ANSWER: u16 = 13;

/// Measures links on one rank.
pub(super) struct Links<'run> {
    ranks: Ranks<'run>,
    /// Ranks between which pairs are measured: one of each node, or all of a single node.
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

    /// Measures every pair in both directions.
    pub(super) fn pairs(&mut self) -> Outcome<Pairs> {
        let of_pairs = self.repeated(|links, slow| {
            links.measured(|ends| slow.is_none_or(|it| it.contains(ends)))
        })?;
        Ok(Pairs::new(of_pairs.best))
    }

    /// Measures, and repeats while links seem slow. The better rate counts: a neighbour may have
    /// used the network, or the cores of one end. All ranks have equal rates, and decide alike.
    fn repeated(
        &mut self,
        measure: impl Fn(&mut Self, Option<&SlowLinks>) -> Outcome<Vec<Link>>,
    ) -> Outcome<Measured> {
        let mut measured = Measured::new(measure(self, None)?);
        for _ in 0..REPEATS_MAX {
            let slow = SlowLinks::among(&measured.best);
            if slow.links.is_empty() {
                break;
            }
            measured.add(measure(self, Some(&slow))?);
        }
        Ok(measured)
    }

    /// Measures the wanted links, on all ranks, in rounds of pairs that have no end in common.
    fn measured(&mut self, is_wanted: impl Fn(Ends) -> bool) -> Outcome<Vec<Link>> {
        let mut own = Vec::new();
        let there_and_back = |round: Vec<Ends>| {
            let back = round.iter().map(|ends| ends.reversed()).collect();
            [round, back]
        };
        for round in rounds(&self.ends).into_iter().flat_map(there_and_back) {
            let round: Vec<Ends> = round.into_iter().filter(|ends| is_wanted(*ends)).collect();
            if round.is_empty() {
                continue;
            }
            self.ranks.collective.barrier(self.ranks.deadline())?;
            let rank = self.ranks.rank();
            if let Some(ends) = round.into_iter().find(|ends| ends.contains(rank)) {
                own.extend(self.one_way(ends)?);
            }
        }
        let mut links: Vec<Link> = self.ranks.gather(&own)?.into_iter().flatten().collect();
        links.sort_by_key(|link| (link.from, link.to));
        Ok(links)
    }

    /// Sends or receives; the sender returns the rate.
    fn one_way(&mut self, ends: Ends) -> Outcome<Option<Link>> {
        let Ends { from, to } = ends;
        // The first message connects; the second shows how many there is time for.
        self.send_or_receive(ends, 1)?;
        let took = self.send_or_receive(ends, 1)?;
        let mut count = [messages(took) as f32];
        let operation = |is_sender| match is_sender {
            true => Operation::Send { to, tag: TAG },
            false => Operation::Receive { from, tag: TAG },
        };
        let is_sender = self.ranks.rank() == from;
        let deadline = self.ranks.deadline();
        self.ranks.collective.run(Channel::Data, operation(is_sender), &mut count[..], deadline)?;
        let count = count[0] as u32;
        let took = self.send_or_receive(ends, count)?;
        let bytes = self.message.len() * size_of::<f32>() * count as usize;
        let bytes_per_second = bytes as f64 / took.as_secs_f64();
        Ok(is_sender.then_some(Link { from, to, bytes_per_second }))
    }

    /// Sends or receives `count` messages, until the receiver has answered the last one.
    fn send_or_receive(&mut self, ends: Ends, count: u32) -> Outcome<Duration> {
        let Ends { from, to } = ends;
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

    /// Exchanges between all ranks and partners at a distance of 1, 2, 4, ..., all at the same
    /// time.
    pub(super) fn bisection(&mut self) -> Outcome<Vec<Cut>> {
        let world = self.ranks.world();
        let distances = (0..).map(|bit| 1_usize << bit).take_while(|distance| *distance < world);
        distances.collect::<Vec<_>>().into_iter().map(|distance| self.cut(distance)).collect()
    }

    /// Measures a cut, as a whole each time: its links share the network.
    fn cut(&mut self, distance: usize) -> Outcome<Cut> {
        Ok(Cut::new(distance, self.repeated(|links, _| links.across(distance))?))
    }

    /// Measures the links of a cut, on all ranks.
    fn across(&mut self, distance: usize) -> Outcome<Vec<Link>> {
        let partner = self.ranks.rank() ^ distance;
        let partner = Some(partner).filter(|partner| *partner < self.ranks.world());
        let mut took = Duration::ZERO;
        let mut count = 1;
        // The first exchange connects; the second shows how many there is time for.
        for is_last in [false, false, true] {
            took = self.exchanges(partner, count)?;
            if !is_last {
                let all: Vec<u32> = self.ranks.gather(&messages(took))?;
                count = all.into_iter().min().unwrap_or(1);
            }
        }
        let bytes = self.message.len() * size_of::<f32>() * count as usize;
        let own = partner.map(|from| Link {
            from,
            to: self.ranks.rank(),
            bytes_per_second: bytes as f64 / took.as_secs_f64(),
        });
        Ok(self.ranks.gather(&own)?.into_iter().flatten().collect())
    }

    /// Exchanges with the partner, if there is one, `count` times.
    fn exchanges(&mut self, partner: Option<usize>, count: u32) -> Outcome<Duration> {
        self.ranks.collective.barrier(self.ranks.deadline())?;
        let start = Instant::now();
        if let Some(partner) = partner {
            (0..count).try_for_each(|_| self.exchange(partner))?;
        }
        Ok(start.elapsed())
    }

    fn exchange(&mut self, partner: usize) -> Outcome<()> {
        let deadline = self.ranks.deadline();
        let Self { ranks, message, received, .. } = self;
        let send = (Operation::Send { to: partner, tag: TAG }, message.into());
        let receive = (Operation::Receive { from: partner, tag: TAG }, received.into());
        ranks.collective.run_group(Channel::Data, [send, receive], deadline)?;
        Ok(())
    }
}

/// Returns as many messages as there is time for, if one takes `took`.
fn messages(took: Duration) -> u32 {
    let fitting = MEASURE_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
    (fitting as u32).clamp(1, MESSAGES_MAX)
}

/// Keeps the better rate of each link.
fn keep_better(links: &mut [Link], again: &[Link]) {
    for link in links {
        let rates = again.iter().filter(|other| other.ends() == link.ends());
        let rates = rates.map(|other| other.bytes_per_second);
        link.bytes_per_second = rates.fold(link.bytes_per_second, f64::max);
    }
}

/// Returns rounds in which each end is in one pair at most, and after which all pairs have met: one
/// end stays in place and the others rotate.
fn rounds(ends: &[usize]) -> Vec<Vec<Ends>> {
    let mut seats: Vec<Option<usize>> = ends.iter().copied().map(Some).collect();
    if seats.len() % 2 == 1 {
        seats.push(None);
    }
    let count = seats.len();
    (1..count)
        .map(|_| {
            let round = (0..count / 2).filter_map(|at| seats[at].zip(seats[count - 1 - at]));
            let round = round.map(|(from, to)| Ends { from, to }).collect();
            seats[1..].rotate_right(1);
            round
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the links of four ranks in two pairs, with these receive rates.
    fn received(rates: [f64; 4]) -> Vec<Link> {
        let link = |(to, bytes_per_second)| Link { from: to ^ 1, to, bytes_per_second };
        rates.into_iter().enumerate().map(link).collect()
    }

    /// Simulates a network that is too slow for four links: another one loses each time.
    #[test]
    fn the_rate_of_a_cut_is_one_that_was_measured() {
        let mut measured = Measured::new(received([2.0, 10.0, 10.0, 10.0]));
        measured.add(received([10.0, 4.0, 10.0, 10.0]));
        measured.add(received([10.0, 10.0, 2.0, 10.0]));
        let cut = Cut::new(1, measured);
        assert_eq!(cut.bytes_per_second, 34.0);
        assert_eq!(cut.links, received([10.0, 4.0, 10.0, 10.0]));
        assert_eq!(cut.slow, SlowLinks { links: Vec::new() }, "each was fast once");
    }

    #[test]
    fn a_link_that_is_slow_each_time_is_named_with_its_best_rate() {
        let mut measured = Measured::new(received([3.0, 10.0, 10.0, 10.0]));
        measured.add(received([5.0, 10.0, 10.0, 10.0]));
        measured.add(received([4.0, 10.0, 10.0, 10.0]));
        let cut = Cut::new(1, measured);
        let [slow] = &cut.slow.links[..] else { panic!("{cut:?}") };
        assert_eq!(slow.link, Link { from: 1, to: 0, bytes_per_second: 5.0 });
    }

    #[test]
    fn every_pair_meets_once_and_no_end_twice_in_a_round() {
        for count in 2..9 {
            let ends: Vec<usize> = (0..count).map(|end| 10 * end).collect();
            let mut met = Vec::new();
            for round in rounds(&ends) {
                let mut busy: Vec<usize> =
                    round.iter().flat_map(|pair| [pair.from, pair.to]).collect();
                busy.sort_unstable();
                busy.dedup();
                assert_eq!(busy.len(), 2 * round.len());
                met.extend(
                    round.iter().map(|pair| (pair.from.min(pair.to), pair.from.max(pair.to))),
                );
            }
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), count * (count - 1) / 2, "{count} ends");
        }
    }
}
