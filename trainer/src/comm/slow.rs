//! Detection of slow links.

use std::collections::BTreeSet;

use serde::Serialize;

use super::links::{Ends, Link};

/// Share of a good link's rate below which a link is slow.
const SLOW_SHARE: f64 = 0.7;

/// Links that are far slower than a good one: the upper quartile of all. The median would not do:
/// one bad adapter of three makes most links slow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SlowLinks {
    /// Slow links, the slowest first.
    pub links: Vec<SlowLink>,
}

/// Slow links among those between every two ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SlowPairs {
    #[serde(flatten)]
    pub slow: SlowLinks,
    /// Rank at one end of all slow links, if they are at least half of its links and there are more
    /// than two ends: its adapter or cable is more likely the cause than the network. `None` for a
    /// cut, as each of its ends has one partner.
    pub common_end: Option<usize>,
}

/// Link that is slow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SlowLink {
    #[serde(flatten)]
    pub link: Link,
    /// Share of a good link's rate.
    pub share_of_good: f64,
}

impl SlowLinks {
    /// Finds the slow links among links that were measured in the same way.
    pub(super) fn among(links: &[Link]) -> Self {
        Self { links: slow_links(links) }
    }

    pub(super) fn contains(&self, ends: Ends) -> bool {
        self.links.iter().any(|slow| slow.link.ends() == ends)
    }
}

impl SlowPairs {
    /// Finds the slow links among those between every two ends.
    pub(super) fn among(links: &[Link]) -> Self {
        let slow = SlowLinks::among(links);
        Self { common_end: common_end(links, &slow.links), slow }
    }
}

fn slow_links(links: &[Link]) -> Vec<SlowLink> {
    let mut rates: Vec<f64> = links.iter().map(|link| link.bytes_per_second).collect();
    rates.sort_by(f64::total_cmp);
    let Some(&good) = rates.get(rates.len() * 3 / 4) else { return Vec::new() };
    let of_good = |link: &Link| link.bytes_per_second / good;
    let slow = links.iter().filter(|link| of_good(link) < SLOW_SHARE);
    let mut slow: Vec<SlowLink> =
        slow.map(|link| SlowLink { link: link.clone(), share_of_good: of_good(link) }).collect();
    slow.sort_by(|a, b| a.share_of_good.total_cmp(&b.share_of_good));
    slow
}

fn common_end(links: &[Link], slow: &[SlowLink]) -> Option<usize> {
    let ends: BTreeSet<usize> = links.iter().map(|link| link.from).collect();
    if slow.is_empty() || ends.len() <= 2 {
        return None;
    }
    let is_common = |end: &usize| {
        let all = links.iter().filter(|link| link.ends().contains(*end)).count();
        slow.iter().all(|slow| slow.link.ends().contains(*end)) && 2 * slow.len() >= all
    };
    let mut common = ends.into_iter().filter(is_common);
    let first = common.next()?;
    common.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(ends: usize, rate: impl Fn(usize, usize) -> f64) -> Vec<Link> {
        let all = (0..ends).flat_map(|from| (0..ends).map(move |to| (from, to)));
        let other = all.filter(|(from, to)| from != to);
        other.map(|(from, to)| Link { from, to, bytes_per_second: rate(from, to) }).collect()
    }

    #[test]
    fn the_slow_link_is_named_and_the_end_of_which_all_are_slow() {
        let alike = SlowPairs::among(&links(4, |from, to| 10.0 + 0.1 * (from + to) as f64));
        let nothing = SlowLinks { links: Vec::new() };
        assert_eq!(alike, SlowPairs { slow: nothing, common_end: None });
        let one =
            SlowPairs::among(&links(4, |from, to| if (from, to) == (2, 1) { 4.0 } else { 10.0 }));
        let link = Link { from: 2, to: 1, bytes_per_second: 4.0 };
        assert_eq!(one.slow.links, [SlowLink { link, share_of_good: 0.4 }]);
        assert_eq!(one.common_end, None, "one link of many");
        let end = links(4, |from, to| if from == 3 || to == 3 { 2.0 } else { 10.0 });
        let end = SlowPairs::among(&end);
        assert_eq!((end.slow.links.len(), end.common_end), (6, Some(3)));
        let two = SlowPairs::among(&links(2, |from, _| if from == 1 { 2.0 } else { 10.0 }));
        assert_eq!((two.slow.links.len(), two.common_end), (1, None));
    }
}
