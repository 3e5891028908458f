//! Check of the differences between the clocks of nodes.
//!
//! Rank 0 sends to the first rank of each node, which answers with its time. The answer was given
//! at some moment of the round trip, half of which is the error; the fastest of several exchanges
//! has the smallest error (Cristian, "Probabilistic clock synchronization", Distributed Computing
//! 3, 1989).

use std::time::UNIX_EPOCH;

use collectives::{Channel, Operation};
use launch::doctor::{CheckDesc, Finding, Group, Scope};

use super::{Found, Place};
use crate::failure::Outcome;
use crate::ranks::Ranks;
use record::statistics::Distribution;

pub(super) const CLOCK: CheckDesc = CheckDesc {
    name: "clock",
    group: Group::Nodes,
    scope: Scope::World,
    inspects: "wall-clock times that rank 0 exchanges with each node; the difference of any two \
               nodes, minus half of the round trips, is a lower bound",
    thresholds: "warns above 0.1 s (logs and traces of nodes cannot be put in order); fails above \
                 2 s (no time service runs; from some minutes on, object stores and TLS refuse \
                 requests)",
    remedy: "run chrony or another NTP client on the node, not in the pod",
    fault: "trainer/src/doctor/clock.rs: a_clock_that_is_wrong_is_found_through_a_slow_network",
};

const WARN_SECONDS: f64 = 0.1;
const FAIL_SECONDS: f64 = 2.0;

/// Number of exchanges with each node; the first ones connect.
const EXCHANGES: usize = 8;

const TAG: u16 = 14;

/// Compares the clocks of all nodes with that of rank 0. Collective.
pub(super) fn compare(ranks: Ranks<'_>, places: &[Place]) -> Outcome<Found> {
    let others = (1..places.len()).filter(|rank| places[*rank].is_first_of_node);
    // Clock of rank 0, which the other clocks are compared with.
    let own = NodeClock { host: places[0].host.clone(), ahead_seconds: 0.0, error_seconds: 0.0 };
    let mut clocks = vec![own];
    for rank in others {
        let Some(exchanges) = exchange(ranks, rank)? else { continue };
        clocks.push(NodeClock { host: places[rank].host.clone(), ..NodeClock::of(&exchanges) });
    }
    let all: Vec<Vec<NodeClock>> = ranks.gather(&clocks)?;
    let of_first = all.into_iter().next().unwrap_or_default();
    Ok(Found::new(CLOCK.name, judge(&of_first)))
}

/// Times of one exchange, in seconds: sent and received by the clock of rank 0, and answered by
/// that of the other rank.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    sent: f64,
    answered: f64,
    received: f64,
}

impl Exchange {
    fn round_trip_seconds(self) -> f64 {
        self.received - self.sent
    }
}

/// Clock of a node relative to that of rank 0.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct NodeClock {
    host: String,
    /// Seconds by which it is ahead.
    ahead_seconds: f64,
    /// Largest error of that.
    error_seconds: f64,
}

impl NodeClock {
    /// Computes the clock from exchanges; the caller fills in the host.
    fn of(exchanges: &[Exchange]) -> Self {
        let fastest = exchanges
            .iter()
            .min_by(|a, b| a.round_trip_seconds().total_cmp(&b.round_trip_seconds()));
        let fastest = fastest.expect("several exchanges");
        let Exchange { sent, answered, received } = *fastest;
        Self {
            host: String::new(),
            ahead_seconds: answered - f64::midpoint(sent, received),
            error_seconds: fastest.round_trip_seconds() / 2.0,
        }
    }

    /// Returns by how much it is ahead at least; below 0, behind at most.
    fn least_seconds(&self) -> f64 {
        self.ahead_seconds - self.error_seconds
    }

    fn most_seconds(&self) -> f64 {
        self.ahead_seconds + self.error_seconds
    }
}

/// Exchanges times with another rank; `None` on all ranks but rank 0.
fn exchange(ranks: Ranks<'_>, other: usize) -> Outcome<Option<Vec<Exchange>>> {
    match ranks.rank() {
        0 => {
            let once = |_| {
                let sent = now();
                send(ranks, other, sent)?;
                let answered = receive(ranks, other)?;
                Ok(Exchange { sent, answered, received: now() })
            };
            (0..EXCHANGES).map(once).collect::<Outcome<_>>().map(Some)
        }
        rank if rank == other => {
            for _ in 0..EXCHANGES {
                receive(ranks, 0)?;
                send(ranks, 0, now())?;
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn send(ranks: Ranks<'_>, to: usize, time: f64) -> Outcome<()> {
    let operation = Operation::Send { to, tag: TAG };
    ranks.collective.run(Channel::Control, operation, &mut [time][..], ranks.deadline())?;
    Ok(())
}

fn receive(ranks: Ranks<'_>, from: usize) -> Outcome<f64> {
    let mut time = [0.0_f64];
    let operation = Operation::Receive { from, tag: TAG };
    ranks.collective.run(Channel::Control, operation, &mut time[..], ranks.deadline())?;
    Ok(time[0])
}

/// Returns the seconds since 1970 by this node's clock, exact to a microsecond.
fn now() -> f64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Judges the clocks of all nodes, including that of rank 0.
fn judge(clocks: &[NodeClock]) -> Finding {
    if clocks.len() < 2 {
        return Finding::skip("one node");
    }
    let by = |time: fn(&NodeClock) -> f64| {
        move |a: &&NodeClock, b: &&NodeClock| time(a).total_cmp(&time(b))
    };
    let ahead = clocks.iter().max_by(by(NodeClock::least_seconds)).expect("two clocks");
    let behind = clocks.iter().min_by(by(NodeClock::most_seconds)).expect("two clocks");
    let apart = ahead.least_seconds() - behind.most_seconds();
    if apart > FAIL_SECONDS {
        Finding::fail(text(clocks, ahead, behind), format!("at most {FAIL_SECONDS} s apart"))
    } else if apart > WARN_SECONDS {
        Finding::warn(text(clocks, ahead, behind), format!("at most {WARN_SECONDS} s apart"))
    } else {
        let most = clocks.iter().map(NodeClock::most_seconds).fold(f64::MIN, f64::max);
        let least = clocks.iter().map(NodeClock::least_seconds).fold(f64::MAX, f64::min);
        Finding::pass(format!("at most {:.1} ms apart", 1e3 * (most - least)))
    }
}

/// Describes the two clocks that are farthest apart, and other deviations. Of two nodes either may
/// be wrong.
fn text(clocks: &[NodeClock], ahead: &NodeClock, behind: &NodeClock) -> String {
    let apart = ahead.ahead_seconds - behind.ahead_seconds;
    let mut text = format!("{} is {apart:.3} s ahead of {}", ahead.host, behind.host);
    let median = Distribution::of(clocks.iter().map(|clock| clock.ahead_seconds));
    let median = median.map_or(0.0, |distribution| distribution.median);
    for clock in clocks {
        let off = clock.ahead_seconds - median;
        let is_off = off.abs() - clock.error_seconds > WARN_SECONDS / 2.0;
        if is_off && clocks.len() > 2 {
            text += &format!("; {} is {off:+.3} s off the median", clock.host);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use launch::doctor::Status;

    use super::*;

    /// Returns the clock of a node that is `ahead`, over a network with these delays of each way.
    fn recorded(ahead: f64, delays: &[[f64; 2]]) -> NodeClock {
        let exchange = |(number, [there, back]): (usize, &[f64; 2])| {
            let sent = 1.7e9 + number as f64;
            let answered = sent + there + ahead;
            Exchange { sent, answered, received: sent + there + back }
        };
        let all: Vec<_> = delays.iter().enumerate().map(exchange).collect();
        NodeClock { host: "node-b".to_owned(), ..NodeClock::of(&all) }
    }

    #[test]
    fn a_clock_that_is_wrong_is_found_through_a_slow_network() {
        let delays = [[0.5, 0.1], [0.001, 0.003], [0.2, 0.2]];
        let right = recorded(0.0, &delays);
        assert!(right.ahead_seconds.abs() <= right.error_seconds && right.error_seconds < 0.003);
        let own = || NodeClock { host: "node-a".to_owned(), ..recorded(0.0, &[[0.0, 0.0]]) };
        assert_eq!(judge(&[own(), right.clone()]).status, Status::Pass);
        let other = |ahead| NodeClock { host: "node-c".to_owned(), ..recorded(ahead, &delays) };
        let early = judge(&[own(), right.clone(), other(0.3)]);
        assert_eq!(early.status, Status::Warn);
        assert_eq!(
            early.found,
            "node-c is 0.299 s ahead of node-a; node-c is +0.299 s off the median"
        );
        let late = judge(&[own(), right, other(-30.0)]);
        assert_eq!(late.status, Status::Fail);
        let text = "node-a is 30.001 s ahead of node-c; node-c is -30.000 s off the median";
        assert_eq!(late.found, text);
        assert_eq!(judge(&[own(), other(30.0)]).found, "node-c is 29.999 s ahead of node-a");
        // Neither clock is far from rank 0's.
        let both = judge(&[own(), recorded(0.08, &delays), recorded(-0.08, &delays)]);
        assert_eq!(both.status, Status::Warn);
        // Over a network with a delay of a second, half a second is within the error.
        assert_eq!(judge(&[own(), recorded(0.4, &[[0.5, 0.5]])]).status, Status::Pass);
        assert_eq!(judge(&[own()]).status, Status::Skip);
    }
}
