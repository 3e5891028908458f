//! How far the clocks of nodes are apart.
//!
//! Rank 0 sends to the first rank of each node, which answers with its time. The answer was given
//! somewhere between: half of the round trip is the error, and the fastest of several exchanges has
//! the smallest (Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989).

use std::time::UNIX_EPOCH;

use collectives::{Channel, Operation};
use launch::doctor::{About, Finding, Group, Scope};

use super::{Found, Place};
use crate::failure::Outcome;
use crate::ranks::Ranks;
use record::statistics::Distribution;

pub(super) const CLOCK: About = About {
    name: "clock",
    group: Group::Nodes,
    scope: Scope::World,
    looks_at: "wall-clock times that rank 0 exchanges with each node, less half of the round \
               trip: how far any two nodes are apart at least",
    thresholds: "warns above 0.1 s (logs and traces of nodes cannot be put in order); fails above \
                 2 s (no time service: object stores and TLS refuse requests at minutes)",
    remedy: "run chrony or another NTP client on the node, not in the pod",
    fault: "trainer/src/doctor/clock.rs: a_clock_that_is_wrong_is_found_through_a_slow_network",
};

const WARN_SECONDS: f64 = 0.1;
const FAIL_SECONDS: f64 = 2.0;

/// Exchanges with each node: the first ones connect.
const EXCHANGES: usize = 8;

const TAG: u16 = 14;

/// Exchanges times of all nodes with rank 0. Collective.
pub(super) fn compare(ranks: Ranks<'_>, places: &[Place]) -> Outcome<Found> {
    let others = (1..places.len()).filter(|rank| places[*rank].is_first_of_node);
    // Rank 0's own, against which the others are.
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
/// that of the other.
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

/// The clock of a node against that of rank 0.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct NodeClock {
    host: String,
    /// How far it is ahead.
    ahead_seconds: f64,
    /// By how much that may be wrong.
    error_seconds: f64,
}

impl NodeClock {
    /// Of a host that is filled in by who knows it.
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

    /// How far it is ahead at least; below 0, behind at most.
    fn least_seconds(&self) -> f64 {
        self.ahead_seconds - self.error_seconds
    }

    fn most_seconds(&self) -> f64 {
        self.ahead_seconds + self.error_seconds
    }
}

/// `None` on ranks that take no part, and on the one that answers.
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

/// Seconds since 1970, by this node's clock: exact to a microsecond.
fn now() -> f64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Of all nodes, that of rank 0 among them.
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

/// The two that are farthest apart, and who else is off. Of two nodes either may be wrong.
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

    /// Exchanges with a node whose clock is so much ahead, over a network that delays each way.
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
        // Neither is far from rank 0.
        let both = judge(&[own(), recorded(0.08, &delays), recorded(-0.08, &delays)]);
        assert_eq!(both.status, Status::Warn);
        // Over a network that takes a second, half a second is within the error.
        assert_eq!(judge(&[own(), recorded(0.4, &[[0.5, 0.5]])]).status, Status::Pass);
        assert_eq!(judge(&[own()]).status, Status::Skip);
    }
}
