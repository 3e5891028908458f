//! Report that `yardstick comm` prints.

use std::fmt;

use comfy_table::{Cell, CellAlignment, Table, presets};
use device::Device;
use launch::bootstrap::World;
use serde::Serialize;

use super::links::{Cut, Link, Pairs};
use super::slow::{SlowLinks, SlowPairs};
use super::sweep::Row;
use crate::ranks::Ranks;
use record::text::number_format::count;

/// Report of all measurements.
#[derive(Debug, Serialize)]
pub struct CommReport {
    pub(crate) world: usize,
    pub(crate) hosts: Vec<String>,
    /// Name of the device: `cpu` or `cuda`.
    pub(crate) device: &'static str,
    pub(crate) backend: &'static str,
    pub(crate) library: Option<String>,
    pub(crate) rows: Vec<Row>,
    /// Links between pairs; `null` unless asked for.
    pub(crate) pairs: Option<Pairs>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) notes: Vec<String>,
}

impl CommReport {
    pub(super) fn new(ranks: Ranks<'_>, world: &World, device: &Device) -> Self {
        Self {
            world: ranks.world(),
            hosts: world.hosts.clone(),
            device: if matches!(device, Device::Host) { "cpu" } else { "cuda" },
            backend: ranks.collective.backend(),
            library: ranks.collective.library(),
            rows: Vec::new(),
            pairs: None,
            cuts: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the number of wrong elements of all rows and ranks.
    pub(super) fn wrong_elements(&self) -> u64 {
        self.rows.iter().map(|row| row.out_of_place.wrong + row.in_place.wrong).sum()
    }

    /// Returns the columns of nccl-tests, with their units: bytes, elements, microseconds, GB/s.
    fn sweep(&self) -> Table {
        let mut table = table();
        let of_each = ["time us", "algbw", "busbw", "wrong"];
        let names = ["operation", "size B", "count", "type"].into_iter();
        let out = of_each.map(|name| format!("out-of-place\n{name}"));
        let within = of_each.map(|name| format!("in-place\n{name}"));
        table.set_header(names.map(str::to_owned).chain(out).chain(within).map(right));
        for row in &self.rows {
            let own = [
                row.operation.name().to_owned(),
                row.bytes.to_string(),
                row.elements.to_string(),
                "float".to_owned(),
            ];
            let measured = [row.out_of_place, row.in_place].into_iter().flat_map(|it| {
                [
                    format!("{:.1}", it.time_us),
                    gigabytes(it.algbw_bytes_per_second),
                    gigabytes(it.busbw_bytes_per_second),
                    it.wrong.to_string(),
                ]
            });
            table.add_row(own.into_iter().chain(measured).map(right));
        }
        table
    }

    /// Writes the last lines of nccl-tests (`src/common.cu`), which scripts search for, over all
    /// rows.
    fn closing_lines(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = self.wrong_elements();
        let verdict = if wrong == 0 { "OK" } else { "FAILED" };
        writeln!(formatter, "# Out of bounds values : {wrong} {verdict}")?;
        let all = self.rows.iter().flat_map(|row| [row.out_of_place, row.in_place]);
        let sum: f64 = all.map(|it| it.busbw_bytes_per_second).sum();
        let mean = sum / (2 * self.rows.len()) as f64 / 1e9;
        writeln!(formatter, "# Avg bus bandwidth    : {mean:.6}")
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.hosts[rank])
    }

    fn slow(&self, slow: &SlowLinks) -> Vec<String> {
        let links = slow.links.iter().map(|slow| {
            let (from, to) = (self.name(slow.link.from), self.name(slow.link.to));
            let rate = gigabytes(slow.link.bytes_per_second);
            let percent = 100.0 * slow.share_of_good;
            format!("slow link: {from} -> {to}: {rate} GB/s, {percent:.0} % of a good link")
        });
        links.collect()
    }

    /// Describes slow pairs. On one node the ends are ranks, which have no adapter between them.
    fn slow_pairs(&self, SlowPairs { slow, common_end }: &SlowPairs) -> Vec<String> {
        let are_nodes = self.hosts.iter().any(|host| *host != self.hosts[0]);
        let hint = if are_nodes { ": check its adapter" } else { "" };
        let name =
            |end: usize| format!("{} is at one end of every slow link{hint}", self.name(end));
        self.slow(slow).into_iter().chain(common_end.map(name)).collect()
    }

    /// Returns a table of rates by sender (rows) and receiver (columns).
    fn matrix(links: &[Link]) -> Table {
        let mut ends: Vec<usize> = links.iter().map(|link| link.from).collect();
        ends.dedup();
        let mut table = table();
        let heads = ends.iter().map(|to| format!("-> {to}"));
        table.set_header(std::iter::once("GB/s from".to_owned()).chain(heads).map(right));
        for &from in &ends {
            let rate = |&to: &usize| {
                let link = links.iter().find(|link| link.from == from && link.to == to);
                link.map_or("-".to_owned(), |link| gigabytes(link.bytes_per_second))
            };
            let cells = std::iter::once(from.to_string()).chain(ends.iter().map(rate));
            table.add_row(cells.map(right));
        }
        table
    }
}

impl fmt::Display for CommReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world, device, backend, library, .. } = self;
        let library = library.as_deref().unwrap_or("no library");
        let ranks = count(*world, "rank");
        writeln!(formatter, "{ranks} on {device}, {backend}: {library}")?;
        if !self.rows.is_empty() {
            lines(formatter, &self.sweep())?;
            writeln!(formatter, "\nalgbw and busbw in GB/s, as nccl-tests define them.")?;
            self.closing_lines(formatter)?;
        }
        if let Some(pairs) = &self.pairs {
            lines(formatter, &Self::matrix(&pairs.links))?;
            self.slow_pairs(&pairs.slow)
                .iter()
                .try_for_each(|line| writeln!(formatter, "{line}"))?;
        }
        for cut in &self.cuts {
            let rate = gigabytes(cut.bytes_per_second);
            let distance = cut.distance;
            writeln!(formatter, "\nall ranks with the rank {distance} away: {rate} GB/s together")?;
            self.slow(&cut.slow).iter().try_for_each(|line| writeln!(formatter, "{line}"))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(formatter, "note: {note}"))
    }
}

fn lines(formatter: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    writeln!(formatter)?;
    table.lines().try_for_each(|line| writeln!(formatter, "{}", line.trim_end()))
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn gigabytes(bytes_per_second: f64) -> String {
    format!("{:.2}", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(hosts: [&str; 3]) -> CommReport {
        CommReport {
            world: 3,
            hosts: hosts.map(str::to_owned).to_vec(),
            device: "cpu",
            backend: "mpi",
            library: None,
            rows: Vec::new(),
            pairs: None,
            cuts: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn only_a_node_has_an_adapter_to_look_at() {
        let slow = SlowPairs { slow: SlowLinks { links: Vec::new() }, common_end: Some(2) };
        let nodes = report(["a", "b", "c"]).slow_pairs(&slow);
        assert_eq!(nodes, ["rank 2 (c) is at one end of every slow link: check its adapter"]);
        let ranks = report(["a", "a", "a"]).slow_pairs(&slow);
        assert_eq!(ranks, ["rank 2 (a) is at one end of every slow link"]);
    }
}
